-- +goose Up

-- Requests that a rate limit refused share one row per source and minute.
alter table requests add column count integer not null default 1;

-- The limits that all replicas share. Losing them after a crash is harmless, so they are not in the write-ahead log.
create unlogged table rate_limits (
    name    text        not null, -- of the limit
    source  text        not null,
    used_up timestamptz not null, -- when all of the quota is free again
    primary key (name, source)
);

-- +goose Down
drop table rate_limits;
alter table requests drop column count;
