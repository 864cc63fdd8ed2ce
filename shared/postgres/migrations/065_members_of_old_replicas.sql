-- +goose Up

-- Replicas of the release before 057 know none of what 057 and 063 remember of a member. What they do not write would
-- say the opposite of what is true: a server with data would be deleted, one that Nova may still make forgotten, and
-- one that was rebuilt taken for what it was. stores_all is true in statements that write all of it. It is false in
-- every stored row, so that a statement that does not name it is one of those replicas.
alter table managed_members add column stores_all boolean not null default false;
-- +goose StatementBegin
create function complete_member() returns trigger language plpgsql set search_path = pg_catalog, public as $$
begin
    if new.status in ('ready', 'updating') then
        new.was_ready := true;
        new.may_have_data := true;
    end if;
    if not new.stores_all then
        new.is_requested := new.is_requested or new.status = 'creating' and new.object_id = '';
        if tg_op = 'UPDATE' and (new.status in ('creating', 'updating') or new.revision <> old.revision) then
            new.user_data := ''; -- not known: it may have been rebuilt
        end if;
    end if;
    new.stores_all := false;
    return new;
end $$;
-- +goose StatementEnd
create trigger complete_member before insert or update of status on managed_members for each row
    execute function complete_member();

-- What those replicas have written since 057. What a newer one has not requested waits for something else.
update managed_members set was_ready = true, may_have_data = true
where status in ('ready', 'updating') and not (was_ready and may_have_data);
update managed_members set is_requested = true
where object_id = '' and status in ('creating', 'deleting') and not is_waiting and not is_requested;

-- +goose Down
drop trigger complete_member on managed_members;
drop function complete_member();
alter table managed_members drop column stores_all;
