-- +goose NO TRANSACTION
-- +goose Up

-- What retention looks for. Built while others write; one that was broken off has left an invalid index behind.
set lock_timeout = 0;
drop index concurrently if exists orders_final;
create index concurrently orders_final on orders (updated_at, project_id, id) where status <> 'running';
drop index concurrently if exists instances_ended;
create index concurrently instances_ended on instances (updated_at)
    where order_id is null and (state = 'deleted' or disconnected_at is not null and connection_id is null);
drop index concurrently if exists actions_of;
create index concurrently actions_of on actions (project_id, instance_id);
-- What collect-stats looks for (006).
drop index concurrently if exists stats_hourly_recheck;
create index concurrently stats_hourly_recheck on stats_hourly (recheck_at) where recheck_at is not null;
drop index concurrently if exists stats_projects_last;
create index concurrently stats_projects_last on stats_projects (last_hour);
set lock_timeout = '1s'; -- as migrate sets it

-- +goose Down
set lock_timeout = 0;
drop index concurrently if exists orders_final;
drop index concurrently if exists instances_ended;
drop index concurrently if exists actions_of;
drop index concurrently if exists stats_hourly_recheck;
drop index concurrently if exists stats_projects_last;
set lock_timeout = '1s';
