-- +goose NO TRANSACTION
-- +goose Up

-- What an action takes, such as the name of an image: see domain.ActionArguments. No release has the column image_name.
alter table actions add column if not exists arguments jsonb not null default '{}';
alter table actions drop column if exists image_name;

-- A server that is being resized is read as often as any other that Nova works on.
drop index concurrently if exists instances_in_motion;
create index concurrently instances_in_motion on instances (updated_at)
    where state in ('requested', 'building', 'rebooting', 'updating', 'resizing', 'deleting');
drop index concurrently if exists instances_moving;
