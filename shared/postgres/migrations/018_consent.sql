-- +goose Up

-- What programs and people ask others to delegate. A request is seen in two projects: in the one whose servers it is about, whose users grant
-- or decline it, and in the one that asks.
create table connection_requests (
    id                     uuid        primary key,
    project_id             text        not null, -- whose servers: its users decide. That it exists is not checked, so that nobody learns it
    requester_project_id   text        not null,
    requester_project_name text        not null default '',
    requester_user_id      text        not null,
    requester_user_name    text        not null default '',
    grantee                text        not null check (grantee in ('user', 'project')), -- which of the two may act through the connection
    name                   text        not null default '',
    why                    text        not null,
    -- What is asked for. Just one of the two times is given.
    actions                text[]      not null,
    quota                  jsonb       not null default '{}',
    limits                 jsonb       not null default '{}',
    until                  timestamptz,
    duration               interval,   -- counted from the grant
    status                 text        not null default 'pending' check (status in ('pending', 'granted', 'declined', 'withdrawn', 'expired')),
    reason                 text        not null default '', -- why it was declined
    decided_by             text        not null default '', -- the user who granted, declined or withdrew it
    connection_id          uuid,       -- that was made of it
    seq                    bigint      not null default 1,
    expires_at             timestamptz not null, -- then a pending one expires
    -- Who grants it now: one at a time. The claim of a replica that dies ends by itself.
    claim_id               uuid,
    claimed_until          timestamptz,
    granted_sha256         bytea,      -- of what was granted, to tell the same grant sent again from another one
    created_at             timestamptz not null default clock_timestamp(),
    updated_at             timestamptz not null default clock_timestamp(),
    check ((until is null) <> (duration is null)),
    check ((status = 'granted') = (connection_id is not null))
);
create index connection_requests_received on connection_requests (project_id, id);
create index connection_requests_sent on connection_requests (requester_project_id, id);
create index connection_requests_ending on connection_requests (expires_at) where status = 'pending';
create index connection_requests_over on connection_requests (updated_at) where status <> 'pending';

-- +goose Down
drop table connection_requests;
