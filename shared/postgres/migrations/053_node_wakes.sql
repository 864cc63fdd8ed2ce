-- +goose Up

-- A reserved host that goes down, or is up again, makes its leases due: run-leases replaces it, or ends that. watch-nodes
-- has no rights on leases, and needs none ('epoch': see 025_lease_wakes.sql).
-- +goose StatementBegin
create function wake_leases_of_node() returns trigger language plpgsql security definer
set search_path = pg_catalog, public as $$
begin
    update leases l set due_at = 'epoch'
    where l.due_at is not null and l.status in ('starting', 'active', 'ending')
      and exists (select from reservations r
                  join allocations a on a.project_id = r.project_id and a.reservation_id = r.id
                  where r.project_id = l.project_id and r.lease_id = l.id and a.node = new.name
                    and a.prepared_at is not null and a.released_at is null);
    return null;
end $$;
-- +goose StatementEnd
create trigger wake_leases after update of status on nodes for each row
    when (new.status <> old.status and 'down' in (new.status, old.status) and new.pool <> '')
    execute function wake_leases_of_node();

-- +goose Down
drop trigger wake_leases on nodes;
drop function wake_leases_of_node();
