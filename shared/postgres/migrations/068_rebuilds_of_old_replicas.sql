-- +goose Up

-- An older replica does not write is_rebuilt. What it writes of a member whose image it changes says so in the reason.
-- +goose StatementBegin
create or replace function complete_member() returns trigger language plpgsql set search_path = pg_catalog, public as $$
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
        new.is_rebuilt := new.status <> 'ready'
            and (new.is_rebuilt or new.reason like 'its image is being changed to %');
    end if;
    new.stores_all := false;
    return new;
end $$;
-- +goose StatementEnd

update managed_members set is_rebuilt = true
where status in ('creating', 'updating') and reason like 'its image is being changed to %' and not is_rebuilt;

-- +goose Down
-- +goose StatementBegin
create or replace function complete_member() returns trigger language plpgsql set search_path = pg_catalog, public as $$
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
