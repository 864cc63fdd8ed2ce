-- +goose Up

-- The last change of a member that OpenStack has accepted, and how often in a row: one that changes nothing is not
-- repeated without end.
alter table managed_members add column written text not null default '', add column writes integer not null default 0;

-- +goose Down
alter table managed_members drop column written, drop column writes;
