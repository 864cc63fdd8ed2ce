-- +goose Up

-- Sessions end when they are idle, and all of a user together. Those that run do not know their user: they end.
delete from sessions;
alter table sessions
    add column user_id text        not null default '', -- '' = an older version stored it
    add column used_at timestamptz not null default now();

-- +goose Down
alter table sessions drop column user_id, drop column used_at;
