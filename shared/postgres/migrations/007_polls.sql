-- +goose Up

-- A project is read by one replica at a time. The row '' is the list of the whole cloud, for an account that may see it.
alter table polls
    add column read_at       timestamptz, -- when reading last ended, well or not
    add column failing_since timestamptz, -- the first of the attempts in a row that failed; null = the last one was good
    add column not_before    timestamptz, -- when to try again, of a project that cannot be entered for long
    add column gone_at       timestamptz, -- when Keystone first said that there is no such project
    add column sweep_at      timestamptz, -- when the reading of all servers began that has not ended
    add column sweep_marker  text not null default '', -- the last server that it has read
    add column claim_id      uuid,
    add column claimed_until timestamptz;

-- Nova's updated_at of the server when it was last seen: what its action log says of later is not known yet.
alter table instances add column nova_at timestamptz;

-- +goose Down
alter table instances drop column nova_at;
delete from polls where project_id = '';
alter table polls drop column read_at, drop column failing_since, drop column not_before, drop column gone_at,
    drop column sweep_at, drop column sweep_marker, drop column claim_id, drop column claimed_until;
