-- +goose NO TRANSACTION
-- +goose Up

-- What statements look for that run every second or at every tick. Built while others write; one that was broken off has left an
-- invalid index behind.
set lock_timeout = 0;
drop index concurrently if exists orders_waiting;
create index concurrently orders_waiting on orders (coalesce(claimed_until, '-infinity'))
    where status = 'running' and connection_id is not null;
drop index concurrently if exists actions_waiting;
create index concurrently actions_waiting on actions (coalesce(claimed_until, '-infinity')) where status = 'running';
drop index concurrently if exists instances_moving;
create index concurrently instances_moving on instances (updated_at)
    where state in ('requested', 'building', 'rebooting', 'updating', 'deleting');
drop index concurrently if exists connections_idle;
create index concurrently connections_idle on connections (id) where status = 'active' and idle_timeout is not null;
drop index concurrently if exists connections_revocable;
create index concurrently connections_revocable on connections (coalesce(not_before, '-infinity'))
    where status <> 'active' and not revoked;
drop index concurrently if exists connections_read;
create index concurrently connections_read on connections (coalesce(read_at, '-infinity'))
    where status = 'active' and (auth_url <> '' or region <> '');
drop index concurrently if exists trusts_to_revoke_announced;
create index concurrently trusts_to_revoke_announced on trusts_to_revoke (connection_id)
    where failures = 0 and trust_id is not null;
drop index concurrently if exists polls_due;
create index concurrently polls_due on polls (coalesce(read_at, '-infinity'), project_id);
drop index concurrently if exists callbacks_pending;
create index concurrently callbacks_pending on callbacks (coalesce(not_before, '-infinity')) where status = 'pending';
drop index concurrently if exists streams_next;
create index concurrently streams_next on streams (next_at) where head < tail;
set lock_timeout = '1s'; -- as migrate sets it

-- +goose Down
set lock_timeout = 0;
drop index concurrently if exists orders_waiting;
drop index concurrently if exists actions_waiting;
drop index concurrently if exists instances_moving;
drop index concurrently if exists connections_idle;
drop index concurrently if exists connections_revocable;
drop index concurrently if exists connections_read;
drop index concurrently if exists trusts_to_revoke_announced;
drop index concurrently if exists polls_due;
drop index concurrently if exists callbacks_pending;
drop index concurrently if exists streams_next;
set lock_timeout = '1s';
