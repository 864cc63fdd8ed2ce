-- +goose NO TRANSACTION
-- +goose Up

-- When Keystone was last known to accept what was delegated, and when it is asked next. Of connections that are there already it is asked
-- at once: a few at a time.
alter table connections
    add column if not exists checked_at      timestamptz,                        -- when a check that Keystone has answered began
    add column if not exists next_check_at   timestamptz not null default now(), -- the next check is due then, or earlier when somebody asks
    add column if not exists check_until     timestamptz,                        -- until then nobody begins another check
    add column if not exists check_failed_at timestamptz,                        -- when the last check that was not answered began
    add column if not exists check_error     text        not null default '';    -- and why it was not
-- Built while others write; one that was broken off has left an invalid index behind.
set lock_timeout = 0;
drop index concurrently if exists connections_check;
create index concurrently connections_check on connections (next_check_at) where status = 'active';
set lock_timeout = '1s'; -- as migrate sets it

-- +goose Down
set lock_timeout = 0;
drop index concurrently if exists connections_check;
set lock_timeout = '1s';
alter table connections
    drop column if exists checked_at, drop column if exists next_check_at, drop column if exists check_until,
    drop column if exists check_failed_at, drop column if exists check_error;
