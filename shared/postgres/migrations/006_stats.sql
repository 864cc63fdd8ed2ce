-- +goose Up

-- uncertain is how many servers Nova's log does not decide; undecided are their ids, and recheck_at is when they are checked
-- again. settled says that no check within minutes is expected to decide more, so that the hour can be announced.
alter table stats_hourly
    add column uncertain  integer not null default 0,
    add column undecided  text[]  not null default '{}',
    add column recheck_at timestamptz,
    add column settled    boolean not null default true;
alter table stats_hourly add constraint stats_hourly_uncertain check (uncertain >= 0) not valid;

-- The hours between first_hour and last_hour at which the project was not there to be counted: it was disabled, say.
alter table stats_projects add column gaps tstzmultirange not null default '{}';

-- +goose Down
alter table stats_projects drop column gaps;
alter table stats_hourly drop column uncertain, drop column undecided, drop column recheck_at, drop column settled;
