-- +goose Up

-- A row is a host that watch-nodes has seen, that an agent reports for, or that an admin has described. The reservable
-- pool is a part of it: pool '' = the host is in none.
alter table nodes
    drop constraint nodes_pool_check,
    alter column pool set default '',
    add constraint nodes_pool_check check (pool in ('', 'joining', 'reservable', 'leaving')),
    add column labels jsonb not null default '{}', -- texts by key, as the operators set them
    add column region_zone text not null default '', -- where the operators say that it is; zone is Nova's
    add column network_zone text not null default '',
    add column providers text[] not null default '{}', -- what runs on it besides Nova's hypervisor
    add column status_url text not null default '', -- asked when it is suspect; '' = none
    add column alert boolean not null default true, -- whether changes of status are events
    add column auto_cordon_after interval, -- down for so long: it is cordoned; null = never
    add column auto_drain_after interval, -- suspect or cordoned for so long and up in Nova: it is drained; null = never
    add column status text not null default 'unknown' check (status in ('unknown', 'up', 'suspect', 'down')),
    add column status_reason text not null default '',
    add column status_since timestamptz not null default clock_timestamp(),
    add column service_at timestamptz, -- the last report of its nova-compute, by Nova's clock
    add column reported_at timestamptz, -- the same by the database's clock
    add column agent_at timestamptz, -- the last heartbeat of an agent of the operator's own
    add column agent_status text not null default '' check (agent_status in ('', 'up', 'suspect', 'down')),
    add column agent_reason text not null default '', -- what that said
    add column service_id text not null default '', -- of its nova-compute in Nova
    add column enabled boolean not null default true,
    add column disabled_reason text not null default '',
    add column cordoned_at timestamptz, -- by us; null = we have not
    add column servers integer not null default 0,
    add column version bigint not null default 1, -- of its ETag: grows with each change by an admin
    -- Of its last event. A host that was deleted and comes back must not use a number of an event that is still kept.
    add column seq bigint not null default (extract(epoch from clock_timestamp()) * 1000)::bigint;

-- A row is a drain of a host, and due work: watch-nodes claims it at due_at. The last one of a host is shown with it.
create table drains (
    id             uuid        primary key,
    node           text        collate "C" not null references nodes (name) on delete cascade,
    status         text        not null check (status in ('running', 'cancelled', 'done', 'failed')),
    reason         text        not null default '',
    is_automatic   boolean     not null default false,
    requested_by   text        not null default '', -- the user id of the admin
    actor          jsonb,
    parallel       integer     not null default 2,
    server_timeout interval    not null default '10 minutes',
    attempts       integer     not null default 0,
    due_at         timestamptz, -- null = over
    claim_id       uuid,
    claimed_until  timestamptz,
    created_at     timestamptz not null default clock_timestamp(),
    updated_at     timestamptz not null default clock_timestamp(),
    ended_at       timestamptz
);
create unique index drains_open on drains (node) where due_at is not null;
create index drains_node on drains (node, created_at desc);
create index drains_due on drains (due_at) where due_at is not null;

-- The servers of a drain, each with how far it has come.
create table drain_servers (
    drain_id    uuid        not null references drains on delete cascade,
    server_id   text        not null,
    name        text        not null default '',
    project_id  text        not null default '',
    method      text        not null default '' check (method in ('', 'live', 'cold')),
    status      text        not null check (status in ('pending', 'migrating', 'confirming', 'moved', 'skipped')),
    reason      text        not null default '', -- why it is skipped, or waits
    target      text        not null default '', -- the host that it is on now
    attempts    integer     not null default 0,
    begun_at    timestamptz, -- when Nova was asked; by the database's clock
    ended_at    timestamptz,
    primary key (drain_id, server_id)
);

-- What could not be read at the last attempt: its event is written once.
create table monitors (
    name         text        primary key,
    reason       text        not null default '', -- '' = it works
    failed_since timestamptz,
    seq          bigint      not null default (extract(epoch from clock_timestamp()) * 1000)::bigint -- of its last event
);

-- +goose Down
drop table monitors, drain_servers, drains;
delete from nodes where pool = '';
alter table nodes
    drop constraint nodes_pool_check, alter column pool drop default,
    add constraint nodes_pool_check check (pool in ('joining', 'reservable', 'leaving')),
    drop column labels, drop column region_zone, drop column network_zone, drop column providers, drop column status_url,
    drop column alert, drop column auto_cordon_after, drop column auto_drain_after, drop column status,
    drop column status_reason, drop column status_since, drop column service_at, drop column reported_at, drop column agent_at,
    drop column agent_status, drop column agent_reason, drop column service_id, drop column enabled, drop column disabled_reason,
    drop column cordoned_at, drop column servers, drop column version, drop column seq;
