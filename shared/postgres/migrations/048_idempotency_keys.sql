-- +goose Up

-- Requests with an Idempotency-Key. The key itself is not stored: key_id, request_mac and the encryption of the response
-- are derived from it.
create table idempotency_keys (
    project_id    text        not null,
    key_id        bytea       not null check (length(key_id) = 32),
    request_mac   bytea       not null,
    resource_id   uuid        not null, -- of what the request makes
    response      bytea,                -- null = no attempt is known to be done
    claim_id      uuid,
    claimed_until timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    expires_at    timestamptz not null,
    primary key (project_id, key_id)
);
create index idempotency_keys_ending on idempotency_keys (expires_at);

-- +goose Down
drop table idempotency_keys;
