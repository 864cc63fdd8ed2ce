-- +goose Up

-- What users have delegated: a right to act in their project, and its limits. The id is cloudfn's, so a client names a
-- connection by its id alone. Its project is that of the servers.
create table connections (
    id                       uuid        primary key,
    project_id               text        not null,
    domain_id                text        not null,
    user_id                  text        not null, -- who delegated it
    name                     text        not null default '',
    kind                     text        not null check (kind in ('trust', 'application_credential')),
    auth_url                 text        not null default '', -- of another cloud's Keystone; '' = this cloud
    region                   text        not null default '',
    delegation_id            text        not null, -- of the trust or the application credential
    secret                   bytea,      -- only run-connections can decrypt it; null = none, or deleted
    acts_as                  jsonb       not null, -- the user, project and roles that Keystone has for it
    actions                  text[]      not null,
    quota                    jsonb       not null default '{}', -- what is absent is not counted
    usable_by                text[]      not null, -- ids of users and projects
    flavors                  jsonb       not null default '[]', -- those of the cloud, as the delegation can list them
    status                   text        not null check (status in ('active', 'expired', 'lost', 'deleted')),
    reason                   text        not null default '',
    revoked                  boolean     not null default false, -- Keystone has nothing of it that is left to revoke
    expires_at               timestamptz not null,
    idle_timeout             interval,
    last_used_at             timestamptz,
    seq                      bigint      not null default 0, -- of its last event
    -- The delegation's cloud: how often in a row it did not respond, since when, and until when it is not called.
    failures                 integer     not null default 0,
    silent_since             timestamptz,
    not_before               timestamptz,
    created_at               timestamptz not null default now(),
    updated_at               timestamptz not null default now(),
    -- How far its servers in another cloud were read, and which replica reads them. A replica claims one connection at
    -- a time, the one that was read the longest ago.
    read_at                  timestamptz, -- when a replica last began
    read_claim               uuid,        -- that replica's claim
    claimed_until            timestamptz,
    read_since               timestamptz, -- changes before this moment are known
    swept_at                 timestamptz, -- when the last successful read of all servers began
    trust_expires_at         timestamptz, -- when Keystone ends the trust; null of an application credential
    revocation_pending_since timestamptz, -- when Keystone first did not delete the trust; its owner was notified
    -- Whether Keystone accepts the delegation.
    checked_at               timestamptz, -- when the last check began that Keystone responded to
    next_check_at            timestamptz not null default now(), -- a check that is requested comes earlier
    check_until              timestamptz, -- until then no other check begins
    check_failed_at          timestamptz, -- when the last check began that had no response
    check_error              text        not null default '', -- and why it had none
    generation               integer     not null default 1, -- grows with each new trust, credential or secret
    credential_expires_at    timestamptz, -- of an application credential; null = never, or not known
    suspended_at             timestamptz, -- of an active one: nothing is done through it; null = it is not suspended
    resumed_at               timestamptz, -- what waits has waited since then
    limits                   jsonb       not null default '{}', -- domain.ConnectionLimits; what is absent is unlimited
    usable_names             jsonb       not null default '[]', -- of usable_by, where a name was given
    lease_id                 uuid,       -- it is for this lease only
    managed                  boolean     not null default false -- it is for managed resources only
);
create index connections_project on connections (project_id, id);
create index connections_usable on connections using gin (usable_by);
create index connections_ending on connections (expires_at) where status = 'active' or not revoked;
-- When unused connections end. An index cannot have the sum of a timestamptz and an interval, which depends on the
-- session's time zone.
create index connections_idle_end
    on connections (((coalesce(last_used_at, created_at) at time zone 'UTC') + idle_timeout))
    where status = 'active' and idle_timeout is not null;
create index connections_check on connections (next_check_at) where status = 'active';
create index connections_read on connections (coalesce(read_at, '-infinity'))
    where status = 'active' and (auth_url <> '' or region <> '');
create index connections_revocable on connections (coalesce(not_before, '-infinity'))
    where status <> 'active' and not revoked;

-- What can be ordered through a connection, as its delegation listed it last. Each check reads it again.
create table connection_resources (
    connection_id uuid        primary key references connections on delete cascade,
    project_id    text        not null, -- the connection's
    as_of         timestamptz not null, -- when the read began
    seen          jsonb       not null
);

-- What programs and people request others to delegate. Two projects see a request: the one that has the servers, whose
-- users grant or decline it, and the one that requests it.
create table connection_requests (
    id                     uuid        primary key,
    -- Its users decide. Whether it exists is not checked, so that a requester cannot find out.
    project_id             text        not null,
    requester_project_id   text        not null,
    requester_project_name text        not null default '',
    requester_user_id      text        not null,
    requester_user_name    text        not null default '',
    -- Which of the two may act through the connection.
    grantee                text        not null check (grantee in ('user', 'project')),
    name                   text        not null default '',
    why                    text        not null,
    actions                text[]      not null,
    quota                  jsonb       not null default '{}',
    limits                 jsonb       not null default '{}',
    until                  timestamptz, -- either this
    duration               interval,    -- or this is given, which counts from the grant
    status                 text        not null default 'pending'
        check (status in ('pending', 'granted', 'declined', 'withdrawn', 'expired')),
    reason                 text        not null default '', -- why it was declined
    decided_by             text        not null default '', -- the user who granted, declined or withdrew it
    connection_id          uuid,       -- that the grant made
    seq                    bigint      not null default 1, -- of its last event
    expires_at             timestamptz not null, -- a pending one expires then
    -- One user grants it at a time. The claim of a replica that dies expires.
    claim_id               uuid,
    claimed_until          timestamptz,
    granted_sha256         bytea,      -- of the grant, to recognize one that is sent again
    created_at             timestamptz not null default clock_timestamp(),
    updated_at             timestamptz not null default clock_timestamp(),
    check ((until is null) <> (duration is null)),
    check ((status = 'granted') = (connection_id is not null))
);
create index connection_requests_received on connection_requests (project_id, id);
create index connection_requests_sent on connection_requests (requester_project_id, id);
create index connection_requests_ending on connection_requests (expires_at) where status = 'pending';
create index connection_requests_over on connection_requests (updated_at) where status <> 'pending';

-- Trusts that no connection has and that are to be revoked: those that a newer one has replaced; and those announced
-- before they are created, so that one is found when the process dies before its connection is stored.
create table trusts_to_revoke (
    id               uuid        primary key,
    project_id       text        not null,
    connection_id    uuid        not null, -- whose it was, or was to be
    user_id          text        not null, -- the trustor
    trust_id         text,       -- null = announced: its expiry tells it from the user's other trusts
    trust_expires_at timestamptz not null,
    not_before       timestamptz not null, -- work that began with it may end until then, unless its connection ends
    taken_at         timestamptz, -- from then on no connection can be stored with it
    failures         integer     not null default 0,
    pending_since    timestamptz, -- when Keystone first did not delete it; its owner was notified
    created_at       timestamptz not null default clock_timestamp()
);
create index trusts_to_revoke_connection on trusts_to_revoke (connection_id);
create index trusts_to_revoke_announced on trusts_to_revoke (connection_id)
    where failures = 0 and trust_id is not null;
create index trusts_to_revoke_due on trusts_to_revoke (not_before);

-- What run-connections is to do to an instance, in the order of the requests.
create table actions (
    project_id    text        not null,
    id            uuid        not null,
    connection_id uuid        not null references connections,
    instance_id   uuid        not null,
    server_id     text        not null default '', -- of the action connect: the server to adopt
    user_id       text        not null, -- who requested it
    verb          text        not null,
    hard          boolean     not null default false,
    payload       bytea,      -- what a deployment needs, encrypted; null when the action has ended
    status        text        not null default 'running' check (status in ('running', 'done', 'failed')),
    problem       jsonb,
    seq           bigint      not null default 1, -- of its last event
    claim_id      uuid,
    claimed_until timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    updated_at    timestamptz not null default clock_timestamp(),
    -- Of the request, when the caller chose the id: one that is sent again is done once. null = cloudfn chose it.
    body_sha256   bytea,
    actor         jsonb,      -- who requested it, for events
    -- Of the action snapshot: the name that the caller gave to the image, and the image.
    image_name    text        not null default '',
    image_id      text        not null default '',
    primary key (project_id, id)
);
create index actions_running on actions (connection_id, created_at) where status = 'running';
create index actions_waiting on actions (coalesce(claimed_until, '-infinity')) where status = 'running';
create index actions_instance on actions (project_id, instance_id) where status = 'running';
create index actions_of on actions (project_id, instance_id);
