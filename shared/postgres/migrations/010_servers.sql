-- +goose NO TRANSACTION
-- +goose Up

-- What an action takes, such as the name of an image: see domain.ActionArguments. Replicas of before write image_name.
alter table actions add column if not exists arguments jsonb not null default '{}';

-- When the order set which of the server's volumes are deleted with it, and their names. Null = it has not.
alter table instances add column if not exists volumes_set_at timestamptz;

-- A server that is being resized is read as often as any other that Nova works on.
drop index concurrently if exists instances_in_motion;
create index concurrently instances_in_motion on instances (updated_at)
    where state in ('requested', 'building', 'rebooting', 'updating', 'resizing', 'deleting');
drop index concurrently if exists instances_moving;
