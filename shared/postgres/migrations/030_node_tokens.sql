-- +goose Up

-- The token with which the agent of a node sends its heartbeats, as a hash. A node has one at most.
create table node_tokens (
    node       text        collate "C" primary key references nodes (name) on delete cascade,
    hash       bytea       not null unique,
    created_by text        not null, -- the user id of the admin
    created_at timestamptz not null default clock_timestamp()
);

-- +goose Down
drop table node_tokens;
