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
set lock_timeout = '1s'; -- as migrate sets it

-- +goose Down
set lock_timeout = 0;
drop index concurrently if exists orders_final;
drop index concurrently if exists instances_ended;
drop index concurrently if exists actions_of;
set lock_timeout = '1s';
