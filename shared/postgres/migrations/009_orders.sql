-- +goose Up

-- Of an order with calls_recorded each create call is in create_calls before it is sent. Orders that an older version stored
-- have no such proof of which servers are theirs.
alter table orders add column calls_recorded boolean not null default false;

-- The calls to Nova that make servers. The id is a tag of the server. While a call has no answer, no other one is made for its
-- instance before `until`.
create table create_calls (
    project_id  text        not null,
    id          uuid        not null,
    instance_id uuid        not null,
    name        text        not null,
    user_id     text        not null,
    began_at    timestamptz not null,
    until       timestamptz not null,
    ended_at    timestamptz,
    server_id   text,
    primary key (project_id, id),
    foreign key (project_id, instance_id) references instances on delete cascade
);
create index create_calls_instance on create_calls (project_id, instance_id);

-- Servers that carry the tags of an instance and are not its own, once an event has told of them.
create table unexpected_servers (
    project_id  text        not null,
    instance_id uuid        not null,
    server_id   text        not null,
    name        text        not null,
    told_at     timestamptz not null,
    primary key (project_id, instance_id, server_id),
    foreign key (project_id, instance_id) references instances on delete cascade
);

-- +goose Down
drop table unexpected_servers, create_calls;
alter table orders drop column calls_recorded;
