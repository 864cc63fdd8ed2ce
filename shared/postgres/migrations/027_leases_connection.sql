-- +goose NO TRANSACTION
-- +goose Up

-- What wake_leases looks for. Built while others write; one that was broken off has left an invalid index behind.
set lock_timeout = 0;
drop index concurrently if exists leases_connection;
create index concurrently leases_connection on leases (connection_id) where connection_id is not null;

-- +goose Down
drop index concurrently if exists leases_connection;
