-- +goose Up

-- The outcome of giving the server's ports the security groups of their networks: domain.PortGroups. Null = it is not
-- done yet.
alter table instances add column port_groups jsonb;
