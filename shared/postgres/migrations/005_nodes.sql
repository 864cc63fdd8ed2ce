-- +goose Up

-- A row is a host that watch-nodes has found, that an agent reports for, or that an admin has described. The reservable
-- pool is a part of it: pool '' = the host is not in the pool.
create table nodes (
    name              text        collate "C" primary key, -- Nova's name of the host
    region            text        not null default '',
    zone              text        not null default '', -- Nova's
    pool              text        not null default '' check (pool in ('', 'joining', 'reservable', 'leaving')),
    reason            text        not null default '', -- why it does not join or leave
    is_up             boolean     not null default true,
    provider_id       text        not null default '', -- its resource provider in Placement
    vcpus             integer     not null default 0, -- for servers: with Placement's ratios, without what it reserves
    ram_mb            integer     not null default 0,
    disk_gb           integer     not null default 0,
    traits            text[]      not null default '{}',
    attributes        jsonb       not null default '{}', -- texts by name: hypervisor_type, cpu_info:arch, ...
    requested_by      text        not null default '', -- the user id of the admin
    seen_at           timestamptz, -- when Nova and Placement were read
    down_since        timestamptz,
    updated_at        timestamptz not null default clock_timestamp(),
    labels            jsonb       not null default '{}', -- texts by key, set by operators
    region_zone       text        not null default '', -- where it is, set by operators
    network_zone      text        not null default '',
    providers         text[]      not null default '{}', -- what runs on it besides Nova's hypervisor
    status_url        text        not null default '', -- requested while it is suspect; '' = none
    alert             boolean     not null default true, -- whether changes of status are events
    auto_cordon_after interval,   -- down for so long: it is cordoned; null = never
    auto_drain_after  interval,   -- suspect or cordoned for so long and up in Nova: it is drained; null = never
    status            text        not null default 'unknown' check (status in ('unknown', 'up', 'suspect', 'down')),
    status_reason     text        not null default '',
    status_since      timestamptz not null default clock_timestamp(),
    service_at        timestamptz, -- the last report of its nova-compute, by Nova's clock
    reported_at       timestamptz, -- the same by the database's clock
    agent_at          timestamptz, -- the last heartbeat of an operator's own agent
    agent_status      text        not null default '' check (agent_status in ('', 'up', 'suspect', 'down')),
    agent_reason      text        not null default '',
    service_id        text        not null default '', -- of its nova-compute in Nova
    enabled           boolean     not null default true,
    disabled_reason   text        not null default '',
    cordoned_at       timestamptz, -- by cloudfn; null = it is not
    servers           integer     not null default 0,
    version           bigint      not null default 1, -- of its ETag: grows with each change by an admin
    -- Of its last event. A host that was deleted and comes back must not use a number of an event that is still stored.
    seq               bigint      not null default (extract(epoch from clock_timestamp()) * 1000)::bigint,
    -- Since when it is suspect or down: a change from one to the other keeps it. null = it is neither.
    not_up_since      timestamptz,
    -- What servers use of its hypervisors, by Nova. It is read less often than whether the host reports.
    usage             jsonb       not null default '{}',
    forced_down       boolean     not null default false, -- an admin has set it in Nova
    -- The status URLs of hosts that are not up are requested in turns.
    probed_at         timestamptz,
    answered_at       timestamptz -- null = it did not respond then
);
create index nodes_pool on nodes (name) where pool <> '';

-- The token with which the agent of a node sends its heartbeats, as a hash. A node has one at most.
create table node_tokens (
    node       text        collate "C" primary key references nodes (name) on delete cascade,
    hash       bytea       not null unique,
    created_by text        not null, -- the user id of the admin
    created_at timestamptz not null default clock_timestamp()
);

-- A row is a drain of a host, and due work: watch-nodes claims it at due_at. A host is shown with its last one.
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
    due_at         timestamptz, -- null = it has ended
    claim_id       uuid,
    claimed_until  timestamptz,
    created_at     timestamptz not null default clock_timestamp(),
    updated_at     timestamptz not null default clock_timestamp(),
    ended_at       timestamptz
);
create unique index drains_open on drains (node) where due_at is not null;
create index drains_node on drains (node, created_at desc);
create index drains_due on drains (due_at) where due_at is not null;

-- The servers of a drain, and how far the move of each has come.
create table drain_servers (
    drain_id   uuid        not null references drains on delete cascade,
    server_id  text        not null,
    name       text        not null default '',
    project_id text        not null default '',
    method     text        not null default '' check (method in ('', 'live', 'cold')),
    status     text        not null check (status in ('pending', 'migrating', 'confirming', 'moved', 'skipped')),
    reason     text        not null default '', -- why it is skipped, or waits
    target     text        not null default '', -- the host that it is on now
    attempts   integer     not null default 0,
    begun_at   timestamptz, -- when Nova was called, by the database's clock
    ended_at   timestamptz,
    primary key (drain_id, server_id)
);

-- What failed at the last attempt, so that one event reports it. The monitors 'zone/NAME' fail while no host of the
-- zone is cordoned or drained automatically.
create table monitors (
    name           text        primary key,
    reason         text        not null default '', -- '' = it works
    failed_since   timestamptz,
    seq            bigint      not null default (extract(epoch from clock_timestamp()) * 1000)::bigint, -- as of nodes
    -- When the hypervisors were last read, and the marker of the next page; '' = that was the last page.
    details_at     timestamptz,
    details_marker text        not null default '',
    ended_at       timestamptz -- of the last failure
);
