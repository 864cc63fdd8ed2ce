-- +goose Up

-- What users have delegated: a right to act in their project, and how far it goes. The id is ours, so whoever may act through
-- a connection names it by its id alone; its project is where the servers are.
create table connections (
    id            uuid        primary key,
    project_id    text        not null,
    domain_id     text        not null,
    user_id       text        not null, -- who delegated it
    name          text        not null default '',
    kind          text        not null check (kind in ('trust', 'application_credential')),
    auth_url      text        not null default '', -- of another cloud's Keystone; '' is this cloud
    region        text        not null default '',
    delegation_id text        not null, -- the trust's id, or the application credential's
    secret        bytea,                -- sealed: only run-connections can open it; null = none, or wiped
    acts_as       jsonb       not null, -- the user, project and roles that Keystone sees at work
    actions       text[]      not null,
    quota         jsonb       not null default '{}', -- what is absent is not counted
    usable_by     text[]      not null, -- ids of users and projects
    flavors       jsonb       not null default '[]', -- those of the cloud, as the delegation sees them
    status        text        not null check (status in ('active', 'expired', 'lost', 'deleted')),
    reason        text        not null default '',
    revoked       boolean     not null default false, -- nothing of it is left in Keystone that we could take back
    expires_at    timestamptz not null,
    idle_timeout  interval,
    last_used_at  timestamptz,
    seq           bigint      not null default 0,
    -- The delegation's cloud: how often in a row it gave no answer, since when, and until when it is left alone.
    failures      integer     not null default 0,
    silent_since  timestamptz,
    not_before    timestamptz,
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now()
);
create index connections_project on connections (project_id, id);
create index connections_usable on connections using gin (usable_by);
create index connections_ending on connections (expires_at) where status = 'active' or not revoked;

alter table orders
    add column connection_id uuid, -- the order is worked on by run-connections, with what was delegated
    add column payload       bytea; -- what that takes besides the instances' specs, sealed; gone when all is asked for

alter table instances
    add column connection_id   uuid,
    -- The server is in another cloud: run-connections follows it, because poll-instances cannot.
    add column remote          boolean not null default false,
    -- It was let go: nobody is shown it, but it counts as its connection's until its server is gone.
    add column disconnected_at timestamptz;
create index instances_connection on instances (connection_id) where connection_id is not null and state <> 'deleted';

-- What run-connections is asked to do to an instance, in the order in which it was asked.
create table actions (
    project_id    text        not null,
    id            uuid        not null,
    connection_id uuid        not null references connections,
    instance_id   uuid        not null,
    server_id     text        not null default '', -- of the verb connect: what is to be taken over
    user_id       text        not null, -- who asked
    verb          text        not null,
    hard          boolean     not null default false,
    payload       bytea,      -- what a deployment takes, sealed; gone when it has ended
    status        text        not null default 'running' check (status in ('running', 'done', 'failed')),
    problem       jsonb,
    seq           bigint      not null default 1,
    claim_id      uuid,
    claimed_until timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    updated_at    timestamptz not null default clock_timestamp(),
    primary key (project_id, id)
);
create index actions_running on actions (connection_id, created_at) where status = 'running';
create index actions_instance on actions (project_id, instance_id) where status = 'running';

-- What an agent fetches once when its instance boots, and that it says once that it is ready. The instance has the key of the
-- bundle and the token in its user_data; here is what neither opens: the encrypted bundle, and the token's hash.
create table deployments (
    id           uuid        primary key,
    project_id   text        not null,
    instance_id  uuid        not null,
    image        text        not null, -- the OCI reference
    token_sha256 bytea       not null,
    bundle       bytea,      -- gone soon after it was fetched, and when the token's time is over
    expires_at   timestamptz not null,
    fetched_at   timestamptz,
    ready_at     timestamptz,
    created_at   timestamptz not null default clock_timestamp()
);
create index deployments_instance on deployments (project_id, instance_id, created_at desc);
create index deployments_bundles on deployments (expires_at) where bundle is not null;

alter table events add column connection_id uuid; -- of what happened through a connection

-- A callback gets the events of its own project; or, through a connection, those of what runs through it in another project.
alter table callbacks
    add column of_project    text, -- null is its own
    add column connection_id uuid;
create index callbacks_of on callbacks (coalesce(of_project, project_id));

-- +goose Down
drop trigger if exists fan_out on events;
drop function if exists fan_out;
delete from callbacks where connection_id is not null;
alter table callbacks drop column of_project, drop column connection_id;
alter table events drop column connection_id;
drop table deployments, actions;
alter table instances drop column connection_id, drop column remote, drop column disconnected_at;
alter table orders drop column connection_id, drop column payload;
drop table connections;
