-- +goose Up

-- An object that OpenStack does not find by its id counts as deleted at the second read, some time after the first one.
alter table managed_members add column missed_at timestamptz;

-- +goose Down
alter table managed_members drop column missed_at;
