-- +goose Up

alter table connections
    add column if not exists limits       jsonb not null default '{}', -- which images, networks, flavors and regions; what is absent is not limited
    add column if not exists usable_names jsonb not null default '[]'; -- of usable_by, what those are called that were given by name

-- What can be ordered through a connection, as its delegation saw it last. It is read anew with each check.
create table connection_resources (
    connection_id uuid        primary key references connections on delete cascade,
    project_id    text        not null, -- the connection's
    as_of         timestamptz not null, -- when it was begun to be read
    seen          jsonb       not null
);

-- +goose Down
drop table connection_resources;
alter table connections drop column limits, drop column usable_names;
