-- +goose Up

-- How far the servers of a connection to another cloud were read, and by whom they are being read. A replica claims one connection at
-- a time, the one that nobody has read for the longest.
alter table connections
    add column read_at       timestamptz, -- when a replica last began
    add column read_claim    uuid,        -- that replica's claim
    add column claimed_until timestamptz, -- when the claim ends by itself
    add column read_since    timestamptz, -- changes before this moment are known: when the last successful read began
    add column swept_at      timestamptz; -- when the last successful read of all servers began

-- +goose Down
alter table connections
    drop column read_at, drop column read_claim, drop column claimed_until, drop column read_since, drop column swept_at;
