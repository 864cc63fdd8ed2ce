-- +goose Up

-- When the instance of a pending lease was first where it waits for the start; a later change is its owner's.
alter table reservations add column prepared_at timestamptz;
alter table leases add column enforce boolean not null default false; -- shelve it again then

-- What a lease waits for makes it due: the end of its connection or of its action, and a new state of its instance. The
-- functions that write those have no rights on leases, and need none. 'epoch' is due by any clock, and tells run-leases,
-- when it stores what it has done, that something happened meanwhile.
-- +goose StatementBegin
create function wake_leases() returns trigger language plpgsql security definer set search_path = pg_catalog, public as $$
begin
    case tg_table_name
    when 'connections' then
        update leases set due_at = 'epoch'
        where project_id = new.project_id and connection_id = new.id and status not in ('ended', 'cancelled');
    when 'actions' then
        update leases l set due_at = 'epoch'
        where l.project_id = new.project_id and l.connection_id = new.connection_id
          and l.status not in ('ended', 'cancelled')
          and exists (select from reservations r where r.project_id = l.project_id and r.lease_id = l.id
                        and r.action_id = new.id);
    else
        update leases set due_at = 'epoch'
        where project_id = new.project_id and id = new.lease_id and status not in ('ended', 'cancelled');
    end case;
    return null;
end $$;
-- +goose StatementEnd
create trigger wake_leases after update of status on connections for each row
    when (new.status <> 'active' and old.status = 'active') execute function wake_leases();
create trigger wake_leases after update of status on actions for each row
    when (new.status <> 'running' and old.status = 'running' and new.connection_id is not null)
    execute function wake_leases();
create trigger wake_leases after update of state on instances for each row
    when (new.lease_id is not null and new.state <> old.state) execute function wake_leases();

-- +goose Down
drop trigger wake_leases on connections;
drop trigger wake_leases on actions;
drop trigger wake_leases on instances;
drop function wake_leases();
alter table reservations drop column prepared_at;
alter table leases drop column enforce;
