-- +goose Up

-- The request log. `at` is the database's clock, so that the rows of all replicas are in one order on disk, which BRIN
-- needs, and a month is the same for all. months.sql makes and drops the partitions.
create table requests (
    id              uuid        not null,
    at              timestamptz not null default clock_timestamp(),
    function        text        not null,
    method          text        not null,
    path            text        not null,
    status          smallint    not null,
    ms              integer     not null,
    user_id         text        not null,
    project_id      text        not null,
    domain_id       text        not null,
    request_id      text        not null,
    remote          text        not null,
    code            text        not null,
    user_name       text        not null default '',
    connection_id   uuid,       -- null = it acted through no connection
    acted_in        text        not null default '', -- the connection's project: its owner sees the request, too
    acted_in_domain text        not null default '',
    count           integer     not null default 1 -- requests that a rate limit rejected share a row
) partition by range (at);
create index requests_at on requests using brin (at);
create index requests_project on requests (project_id, id desc);
create index requests_domain on requests (domain_id, id desc);
create index requests_id on requests (id desc);
create index requests_acted on requests (acted_in, id desc) where connection_id is not null;
-- The changes and the errors of a project are few among its requests.
create index requests_changes on requests (project_id, id desc)
    where method not in ('GET', 'HEAD', 'OPTIONS') and path not like '/console/%';
create index requests_errors on requests (project_id, id desc) where status >= 400;
-- Rows of months without a partition. The hourly tick moves them.
create table requests_default partition of requests default;

-- How large the request log was at the end of each hour of the last days.
create table request_log_sizes (
    hour  timestamptz primary key,
    bytes bigint      not null
);

-- The rate limits that all replicas share. Losing them in a crash is harmless, so they are not in the write-ahead log.
create unlogged table rate_limits (
    name    text        not null, -- of the limit
    source  text        not null,
    used_up timestamptz not null, -- when all of the quota is free again
    primary key (name, source)
);

-- Requests with an Idempotency-Key. The key itself is not stored: key_id, request_mac and the encryption of the
-- response are derived from it.
create table idempotency_keys (
    project_id    text        not null,
    key_id        bytea       not null check (length(key_id) = 32),
    request_mac   bytea       not null,
    resource_id   uuid        not null, -- of what the request makes
    response      bytea,      -- null = no attempt is known to be done
    claim_id      uuid,
    claimed_until timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    expires_at    timestamptz not null,
    primary key (project_id, key_id)
);
create index idempotency_keys_ending on idempotency_keys (expires_at);

-- The console's sessions. Only the browser has the cookie, and without it no session can be decrypted, neither in the
-- database nor in a backup of it.
create table sessions (
    id         bytea       primary key check (octet_length(id) = 32), -- SHA-256 of the cookie
    sealed     bytea       not null, -- the token and its user, encrypted with a key that is derived from the cookie
    expires_at timestamptz not null,
    created_at timestamptz not null default now(),
    user_id    text        not null, -- all sessions of a user end together
    used_at    timestamptz not null default now() -- a session that is idle ends
);
create index sessions_ending on sessions (expires_at);
