-- +goose Up

-- A server on a reserved host is the reservation's if the isolation was proven before it came. Later self-tests that
-- prove it again change nothing of that.
alter table isolation add column proven_since timestamptz; -- null = it is not proven
update isolation set proven_since = tested_at where result = 'proven';

-- 038 was changed after it was first run somewhere. Both forms become the same.
alter table managed
    add column if not exists attempts integer not null default 0,
    add column if not exists retry_at timestamptz;
alter function wake_managed() set search_path = pg_catalog, public, pg_temp;

-- +goose Down
alter table isolation drop column proven_since;
