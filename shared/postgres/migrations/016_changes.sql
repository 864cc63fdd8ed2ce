-- +goose Up

-- A connection is changed behind its id: a new trust or secret, and for a while nothing is done through it.
alter table connections
    add column generation            integer not null default 1, -- grows with each new trust, credential or secret
    add column credential_expires_at timestamptz,                -- of an application credential; null = never, or not known
    add column suspended_at          timestamptz,                -- of an active one: nothing is done through it; null = it is not suspended
    add column resumed_at            timestamptz;                -- what waits has waited since then

-- Trusts that are to be taken back and that no connection has: what a newer one has replaced; and what was announced before it was made, so
-- that it is found when the process dies before its connection is stored.
create table trusts_to_revoke (
    id               uuid        primary key,
    project_id       text        not null,
    connection_id    uuid        not null, -- whose it was, or was to be
    user_id          text        not null, -- who gave it
    trust_id         text,                 -- null = announced: its end tells it from the user's others
    trust_expires_at timestamptz not null,
    not_before       timestamptz not null, -- until then work that began with it goes on; earlier when its connection has ended
    taken_at         timestamptz,          -- from then on no connection can be stored with it
    failures         integer     not null default 0,
    pending_since    timestamptz,          -- when Keystone first did not let it be deleted; its owner was notified of that
    created_at       timestamptz not null default clock_timestamp()
);
create index trusts_to_revoke_connection on trusts_to_revoke (connection_id);
create index trusts_to_revoke_due on trusts_to_revoke (not_before);

-- +goose Down
-- What is to be taken back stays on the list: as connections that have ended.
insert into connections (id, project_id, domain_id, user_id, name, kind, delegation_id, acts_as, actions, usable_by, status, reason, expires_at,
                         trust_expires_at)
select t.id, t.project_id, coalesce(c.domain_id, ''), t.user_id, coalesce(c.name, ''), 'trust', t.trust_id,
       coalesce(c.acts_as, jsonb_build_object('user_id', t.user_id, 'project_id', t.project_id, 'roles', '[]'::jsonb)), coalesce(c.actions, '{}'), '{}',
       'deleted', 'another trust has replaced it', t.trust_expires_at, t.trust_expires_at
from trusts_to_revoke t left join connections c on c.id = t.connection_id and c.project_id = t.project_id
where t.trust_id is not null;
drop table trusts_to_revoke;
-- Nothing more is done through what was suspended: an older cloudfn would take it for active.
update connections set status = 'expired', reason = 'it was suspended', secret = null, updated_at = now() where suspended_at is not null;
alter table connections
    drop column generation, drop column credential_expires_at, drop column suspended_at, drop column resumed_at;
