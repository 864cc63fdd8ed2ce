-- +goose Up

-- A lease may reserve volumes for its instances.
alter table reservations drop constraint reservations_type_check;
alter table reservations add constraint reservations_type_check
    check (type in ('instance', 'host', 'volume')) not valid;

-- Of type volume: domain.LeasedVolume.
alter table reservations add column volume jsonb;
-- Of type volume: the existing volume that the request named. It is in one lease at a time.
alter table reservations add column volume_id text;
alter table reservations add constraint reservations_volume
    exclude using gist (project_id with =, volume_id with =, during with &&) where (volume_id is not null and is_open);

-- What an action has made: domain.ActionOutcome.
alter table actions add column outcome jsonb not null default '{}';
