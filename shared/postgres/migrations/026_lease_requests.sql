-- +goose Up
alter table leases add column body_sha256 bytea; -- of a request whose id the caller chose
-- connection_id is a connection that the request named: it does not end with the lease.
alter table leases add column shares_connection boolean not null default false;
alter table leases drop constraint leases_on_end_check;
alter table leases add constraint leases_on_end_check
    check (on_end in ('shelve', 'stop', 'snapshot_delete', 'delete', 'none'));

alter table reservations add column was_running boolean not null default false; -- before the lease shelved its instance
alter table reservations drop constraint reservations_status_check; -- nothing ever set error
alter table reservations add constraint reservations_status_check check (status in ('pending', 'active', 'ended'));
-- An instance is in one lease at a time: periods of leases do not overlap.
alter table reservations add column during tstzrange; -- of type instance: the period of its lease
update reservations r set during = tstzrange(l.starts_at, l.ends_at)
from leases l where l.project_id = r.project_id and l.id = r.lease_id and r.instance_id is not null;
drop index reservations_instance;
alter table reservations add constraint reservations_instance
    exclude using gist (project_id with =, instance_id with =, during with &&) where (instance_id is not null and is_open);

-- +goose Down
-- One lease of an instance stays: the first.
delete from leases l using reservations later, reservations first
where later.project_id = l.project_id and later.lease_id = l.id and later.is_open and first.project_id = later.project_id
  and first.instance_id = later.instance_id and first.is_open and first.during << later.during;
alter table reservations drop constraint reservations_instance;
create unique index reservations_instance on reservations (project_id, instance_id) where instance_id is not null and is_open;
alter table reservations drop constraint reservations_status_check;
alter table reservations add constraint reservations_status_check check (status in ('pending', 'active', 'ended', 'error'));
alter table reservations drop column during, drop column was_running;
update leases set on_end = 'shelve' where on_end = 'none';
alter table leases drop constraint leases_on_end_check;
alter table leases add constraint leases_on_end_check check (on_end in ('shelve', 'stop', 'snapshot_delete', 'delete'));
alter table leases drop column shares_connection, drop column body_sha256;
