-- +goose Up

-- What the user_data of a member's server were made from, as a digest. The files of configmaps change without a revision
-- of the server, and Nova shows user_data to admins only. It is empty for servers that were made before: what they have
-- is not known.
alter table managed_members add column user_data text not null default '';

-- +goose Down
alter table managed_members drop column user_data;
