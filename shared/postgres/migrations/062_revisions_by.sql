-- +goose Up

-- The name of who declared a revision, as Keystone gave it then; empty in rows of older versions.
alter table managed_revisions add column user_name text not null default '';

-- +goose Down
alter table managed_revisions drop column user_name;
