-- +goose NO TRANSACTION
-- +goose Up

-- When unused connections end: the clock looks for that each minute, and run-connections while it works. An index
-- cannot have the sum of a timestamptz and an interval, which depends on the session's time zone. Built while others
-- write; one that was broken off has left an invalid index behind.
set lock_timeout = 0;
drop index concurrently if exists connections_idle_end;
create index concurrently connections_idle_end
    on connections (((coalesce(last_used_at, created_at) at time zone 'UTC') + idle_timeout))
    where status = 'active' and idle_timeout is not null;
drop index concurrently if exists connections_idle;
set lock_timeout = '1s'; -- as migrate sets it

-- +goose Down
set lock_timeout = 0;
drop index concurrently if exists connections_idle;
create index concurrently connections_idle on connections (id) where status = 'active' and idle_timeout is not null;
drop index concurrently if exists connections_idle_end;
set lock_timeout = '1s';
