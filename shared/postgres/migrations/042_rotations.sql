-- +goose Up

-- Rotations that overlap: the secrets before previous_secret, encrypted. They sign too until previous_until.
alter table callbacks add column older_secrets bytea[] not null default '{}';

-- +goose Down
alter table callbacks drop column older_secrets;
