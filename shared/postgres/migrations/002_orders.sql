-- +goose Up

create table orders (
    project_id    text        not null,
    id            uuid        not null,
    domain_id     text        not null,
    user_id       text        not null,
    body_sha256   bytea       not null, -- of the request: the same id with another body is a conflict
    spec          jsonb       not null, -- domain.OrderSpec
    status        text        not null check (status in ('running', 'done', 'partial', 'failed', 'rolled_back')),
    claim_id      uuid,
    claimed_until timestamptz,
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    seq           bigint      not null default 0, -- of its last event
    connection_id uuid,       -- run-connections works on the order, with what was delegated
    payload       bytea,      -- what that needs besides the instances' specs, encrypted; null once all calls are sent
    problem       jsonb,      -- why it ended in another way than was requested, where no instance says so
    actor         jsonb,      -- who placed it, for events
    -- The id is the caller's, so it is unique within a project only: another project that uses the same one must not
    -- learn that it exists.
    primary key (project_id, id)
);
create index orders_running on orders (created_at) where status = 'running';
create index orders_waiting on orders (coalesce(claimed_until, '-infinity'))
    where status = 'running' and connection_id is not null;
create index orders_final on orders (updated_at, project_id, id) where status <> 'running';
-- Lists are sorted by age, the newest first.
create index orders_project on orders (project_id, created_at desc, id desc);
create index orders_connection on orders (connection_id, created_at desc, id desc) where connection_id is not null;

-- The servers that cloudfn tracks, each under an id that stays when the server is rebuilt.
create table instances (
    project_id      text        not null,
    id              uuid        not null,
    order_id        uuid,
    position        integer     not null, -- in the order
    name            text        not null,
    server_id       text,
    state           text        not null, -- domain.InstanceState
    raw_status      text        not null default '', -- Nova's
    problem         jsonb,
    origin          text        not null,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    spec            jsonb       not null default '{}', -- domain.InstanceSpec
    addresses       jsonb       not null default '[]',
    key_name        text        not null default '',
    key_fingerprint text        not null default '',
    seq             bigint      not null default 0, -- of its last event
    -- When the read of Nova began that the row is from. A read that began earlier does not overwrite it.
    seen_at         timestamptz,
    -- When Nova first did not find the server. It counts as deleted when the next read does not find it either.
    missed_at       timestamptz,
    connection_id   uuid,
    -- The server is in another cloud: run-connections polls it, because poll-instances cannot.
    remote          boolean     not null default false,
    -- It is shown to no one since then, but counts for its connection's quota until its server is deleted.
    disconnected_at timestamptz,
    -- Nova's updated_at in that read. What its action log says of later is not known yet.
    nova_at         timestamptz,
    -- Whether an order with reuse may take the server. null = only if it was launched.
    reusable        boolean,
    -- How many calls to delete the server Nova accepted or rejected without deleting it, and when the last one was.
    delete_tries    integer     not null default 0,
    delete_tried_at timestamptz,
    lease_id        uuid,
    primary key (project_id, id),
    foreign key (project_id, order_id) references orders
);
create unique index instances_server on instances (project_id, server_id) where server_id is not null;
create index instances_order on instances (project_id, order_id);
create index instances_followed on instances (project_id) where state <> 'deleted';
create index instances_connection on instances (connection_id) where connection_id is not null and state <> 'deleted';
create index instances_remote on instances (connection_id)
    where remote and server_id is not null and state <> 'deleted';
create index instances_moving on instances (updated_at)
    where state in ('requested', 'building', 'rebooting', 'updating', 'deleting');
create index instances_ended on instances (updated_at)
    where order_id is null and (state = 'deleted' or disconnected_at is not null and connection_id is null);

-- The calls to Nova that create servers, each stored before it is sent: this proves which servers are an order's. The
-- id is a tag of the server. While a call has no response, no other one is sent for its instance before `until`.
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

-- Servers that carry the tags of an instance and are not its own, so that one event reports each.
create table unexpected_servers (
    project_id  text        not null,
    instance_id uuid        not null,
    server_id   text        not null,
    name        text        not null,
    told_at     timestamptz not null,
    primary key (project_id, instance_id, server_id),
    foreign key (project_id, instance_id) references instances on delete cascade
);

-- How far each project's servers were read, by one replica at a time. The row '' is the list of the whole cloud, for an
-- account that may read it.
create table polls (
    project_id    text        primary key,
    since         timestamptz not null, -- changes before this moment are known
    full_at       timestamptz not null, -- when all of its servers were last read, changed or not
    read_at       timestamptz, -- when the last read ended, successful or not
    failing_since timestamptz, -- the first of the failures in a row; null = the last read was successful
    not_before    timestamptz, -- when a project that could not be entered for long is tried again
    gone_at       timestamptz, -- when Keystone first did not find the project
    sweep_at      timestamptz, -- when the read of all servers began that has not ended
    sweep_marker  text        not null default '', -- the last server that it has read
    claim_id      uuid,
    claimed_until timestamptz
);
create index polls_due on polls (coalesce(read_at, '-infinity'), project_id);

-- What an agent fetches once when its instance boots; it also reports once that it is ready. The instance has the key
-- of the bundle and the token in its user_data. Stored are the encrypted bundle and the token's hash.
create table deployments (
    id            uuid        primary key,
    project_id    text        not null,
    instance_id   uuid        not null,
    image         text        not null, -- the OCI reference
    token_sha256  bytea       not null,
    bundle        bytea,      -- null soon after it was fetched, and when the token has expired
    expires_at    timestamptz not null,
    fetched_at    timestamptz,
    ready_at      timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    -- The connection that the agent is deployed through: the bundle is deleted with it. null = the project's own token.
    connection_id uuid
);
create index deployments_instance on deployments (project_id, instance_id, created_at desc);
create index deployments_bundles on deployments (expires_at) where bundle is not null;

-- Actions with the project's own token and an id from the caller: one that is sent again is done once. They are done
-- while the caller waits. Actions through connections are in the table actions.
create table keyed_actions (
    project_id    text        not null,
    id            uuid        not null,
    body_sha256   bytea       not null, -- of the request
    deployment_id uuid,       -- the last one that Nova was called to rebuild the server for
    result        jsonb,      -- the response to the caller; null = it is not known yet whether Nova accepted the action
    claim_id      uuid,
    claimed_until timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    primary key (project_id, id)
);
create index keyed_actions_created on keyed_actions (created_at);
