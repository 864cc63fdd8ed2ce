-- +goose Up

-- Who made a request, and where it acted through a connection: its owner sees it, too. migrate builds the index on each partition
-- afterwards, while others write.
alter table requests
    add column user_name       text not null default '',
    add column connection_id   uuid, -- null = through none
    add column acted_in        text not null default '', -- the connection's project
    add column acted_in_domain text not null default '';
create index requests_acted on only requests (acted_in, id desc) where connection_id is not null;

-- Who placed an order, or asked for an action. null = an older version stored it.
alter table orders add column actor jsonb;
alter table actions add column actor jsonb;

-- +goose Down
alter table actions drop column actor;
alter table orders drop column actor;
drop index requests_acted;
alter table requests drop column user_name, drop column connection_id, drop column acted_in, drop column acted_in_domain;
