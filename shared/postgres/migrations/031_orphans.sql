-- +goose Up

-- Of a resource that is being deleted: its objects stay in OpenStack.
alter table managed add column orphan boolean not null default false;

-- +goose Down
alter table managed drop column orphan;
