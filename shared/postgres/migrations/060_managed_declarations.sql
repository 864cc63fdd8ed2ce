-- +goose Up

-- How often a resource was declared, the same again included. A round of reconcile-managed that began before a
-- declaration does not write its failures over the attempts that begin anew with it.
alter table managed add column declarations integer not null default 1;

-- +goose Down
alter table managed drop column declarations;
