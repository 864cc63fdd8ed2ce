-- +goose Up

-- A resource is due at next_at. null: it is as declared, and nobody looks at it until something reports a change, or all
-- of the project are scanned.
alter table managed drop column attempts, drop column retry_at; -- members have them
alter table managed add column next_at timestamptz default clock_timestamp();
alter table managed_projects add column scan_at timestamptz not null default clock_timestamp();

-- A server that changes in Nova makes its resource due. Functions that write instances have no rights on managed
-- resources, and need none. A member that is being made, changed or deleted is looked at anyway. The project is locked
-- first, as everywhere.
-- +goose StatementBegin
create function wake_managed() returns trigger language plpgsql security definer set search_path = pg_catalog, public as $$
declare
    of uuid := (select managed_id from managed_members
                where project_id = new.project_id and id = new.id and status in ('ready', 'error'));
begin
    if of is not null then
        update managed_projects set due_at = least(due_at, now()) where project_id = new.project_id;
        update managed set next_at = clock_timestamp() where project_id = new.project_id and id = of;
    end if;
    return null;
end $$;
-- +goose StatementEnd
create trigger wake_managed after update of state, raw_status, name, server_id, nova_at on instances for each row
    when ((new.state, new.raw_status, new.name, new.server_id, new.nova_at)
          is distinct from (old.state, old.raw_status, old.name, old.server_id, old.nova_at))
    execute function wake_managed();

-- +goose Down
drop trigger wake_managed on instances;
drop function wake_managed();
alter table managed_projects drop column scan_at;
alter table managed drop column next_at;
alter table managed add column attempts integer not null default 0, add column retry_at timestamptz;
