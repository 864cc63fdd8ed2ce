-- +goose Up

-- forced_down: an admin says in Nova that the host is down. The status URLs of hosts that are not up are requested in turns.
alter table nodes
    add column forced_down boolean not null default false,
    add column probed_at timestamptz,  -- when its status URL was requested last
    add column answered_at timestamptz; -- null = it did not answer then

-- The monitors 'zone/NAME' fail while no host of the zone is cordoned or drained automatically.
alter table monitors add column ended_at timestamptz; -- of the last failure

-- +goose Down
delete from monitors where name like 'zone/%';
alter table monitors drop column ended_at;
alter table nodes drop column forced_down, drop column probed_at, drop column answered_at;
