-- +goose Up

-- A trust is to be taken back until Keystone says that it is gone. Both stay null of application credentials.
alter table connections
    add column trust_expires_at         timestamptz, -- when Keystone ends it by itself; null of older rows: 10 minutes after expires_at
    add column revocation_pending_since timestamptz; -- when Keystone first did not let it be deleted; its owner was notified of that

-- Until now a trust counted as gone when nobody could log in with it, as while its user was disabled or had no role. Those that may still be
-- there are looked at again.
update connections set revoked = false
where kind = 'trust' and status <> 'active' and revoked and expires_at + interval '10 minutes' > now();

-- +goose Down
alter table connections
    drop column trust_expires_at, drop column revocation_pending_since;
