-- +goose NO TRANSACTION
-- +goose Up

-- What became of the floating IP that the order gives the server: see domain.InstanceFloatingIP. Null = nothing yet.
alter table instances add column if not exists floating_ip jsonb;

-- When the floating IP that was made for the instance was released, after its server was deleted. Null = it was not.
alter table instances add column if not exists floating_ip_released_at timestamptz;

drop index concurrently if exists instances_floating_ips;
create index concurrently instances_floating_ips on instances (updated_at)
    where state = 'deleted' and spec ? 'floating_ip' and floating_ip_released_at is null;
