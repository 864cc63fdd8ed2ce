-- +goose Up

-- A trust is to be taken back until Keystone says that it is gone. Both stay null of application credentials.
alter table connections
    add column trust_expires_at         timestamptz, -- when Keystone ends it by itself; null of older rows: 10 minutes after expires_at
    add column revocation_pending_since timestamptz; -- when Keystone first did not let it be deleted; its owner was notified of that

-- +goose Down
alter table connections
    drop column trust_expires_at, drop column revocation_pending_since;
