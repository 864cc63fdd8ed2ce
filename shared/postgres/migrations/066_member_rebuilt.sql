-- +goose Up

-- Whether a rebuild of a member's server may have been sent since the server was as declared: then its image is compared
-- by its id, because it may be that of a revision which another one has followed.
alter table managed_members add column is_rebuilt boolean not null default false;

-- +goose Down
alter table managed_members drop column is_rebuilt;
