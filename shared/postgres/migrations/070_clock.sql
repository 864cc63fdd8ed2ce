-- +goose NO TRANSACTION
-- +goose Up

-- The clock wakes a function when a job of its kind is due: 'infinity' = when there is something to follow again, null = the job
-- is not periodic.
alter table jobs add column if not exists due_at timestamptz;

-- Functions that the clock could not wake, until it can.
create table if not exists wake_failures (
    function      text        primary key,
    failing_since timestamptz not null default clock_timestamp(),
    failed_at     timestamptz not null default clock_timestamp() -- the last time
);

-- What the clock looks for each minute. Built while others write; one that was broken off has left an invalid index behind.
set lock_timeout = 0;
drop index concurrently if exists jobs_due;
create index concurrently jobs_due on jobs (kind, due_at) where due_at is not null;
drop index concurrently if exists instances_remote;
create index concurrently instances_remote on instances (connection_id) where remote and server_id is not null and state <> 'deleted';
drop index concurrently if exists nodes_pool;
create index concurrently nodes_pool on nodes (name) where pool <> '';
set lock_timeout = '1s'; -- as migrate sets it

-- +goose Down
set lock_timeout = 0;
drop index concurrently if exists nodes_pool;
drop index concurrently if exists instances_remote;
drop index concurrently if exists jobs_due;
set lock_timeout = '1s';
drop table if exists wake_failures;
alter table jobs drop column if exists due_at;
