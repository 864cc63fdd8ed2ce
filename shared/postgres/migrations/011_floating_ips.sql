-- +goose NO TRANSACTION
-- +goose Up

-- What became of the floating IP that the order gives the server: see domain.InstanceFloatingIP. Null = nothing yet.
alter table instances add column if not exists floating_ip jsonb;

-- When the floating IP that the order makes for the instance is to be released, once its server is deleted. Null = the
-- order makes none, or none is left.
alter table instances add column if not exists floating_ip_release_at timestamptz;

drop index concurrently if exists instances_floating_ips;
create index concurrently instances_floating_ips on instances (floating_ip_release_at)
    where state = 'deleted' and floating_ip_release_at is not null;
