-- +goose Up

-- Due work, keyed by its kind and its time: any replica may claim it, for a limited time.
create table jobs (
    kind          text        not null,
    key           text        not null,
    claim_id      uuid,
    claimed_until timestamptz,
    attempts      integer     not null default 0,
    error         text,
    done_at       timestamptz,
    created_at    timestamptz not null default now(),
    -- The clock wakes a function when a job of its kind is due. 'infinity' = when it has something to follow again;
    -- null = the job is not periodic.
    due_at        timestamptz,
    primary key (kind, key)
);
create index jobs_due on jobs (kind, due_at) where due_at is not null;

-- Functions that the clock could not wake, until it can.
create table wake_failures (
    function      text        primary key,
    failing_since timestamptz not null default clock_timestamp(),
    failed_at     timestamptz not null default clock_timestamp() -- the last time
);

-- The servers of a project at a full hour.
create table stats_hourly (
    project_id text        not null,
    hour       timestamptz not null check (date_trunc('hour', hour, 'UTC') = hour),
    domain_id  text        not null,
    running    integer     not null check (running >= 0),
    total      integer     not null check (total >= running),
    by_status  jsonb       not null,
    source     text        not null check (source in ('sampled', 'rebuilt')),
    -- The servers that Nova's log does not decide: how many, their ids, and when they are checked again.
    uncertain  integer     not null default 0,
    undecided  text[]      not null default '{}',
    recheck_at timestamptz,
    settled    boolean     not null default true, -- no check is expected to decide more soon: the hour can be announced
    primary key (project_id, hour),
    constraint stats_hourly_uncertain check (uncertain >= 0)
);
create index stats_hourly_hour on stats_hourly (hour, domain_id);
create index stats_hourly_recheck on stats_hourly (recheck_at) where recheck_at is not null;

-- The projects that collect-stats counts, and from which hour to which it found them: a sum over projects is known only
-- for an hour at which each of them was counted.
create table stats_projects (
    project_id text           primary key,
    domain_id  text           not null,
    first_hour timestamptz    not null,
    last_hour  timestamptz    not null check (last_hour >= first_hour),
    -- The hours in between at which the project could not be counted, such as while it was disabled.
    gaps       tstzmultirange not null default '{}'
);
create index stats_projects_last on stats_projects (last_hour);

-- The sums of an hour, for a domain and for the cloud (the domain ''). A statement that writes counts first deletes the
-- sums of their hours; collect-stats makes them again.
create table stats_sums (
    domain_id text        not null,
    hour      timestamptz not null,
    running   integer     not null,
    total     integer     not null,
    uncertain integer     not null,
    rebuilt   boolean     not null,
    settled   boolean     not null,
    complete  boolean     not null, -- no project is missing
    by_status jsonb       not null,
    primary key (domain_id, hour)
);
create index stats_sums_hour on stats_sums (hour);

-- How far retention has read the final orders: one row, or none at the beginning.
create table retention_markers (
    one        boolean     primary key check (one),
    updated_at timestamptz not null,
    project_id text        not null,
    order_id   uuid        not null
);

-- Projects that ALLOWED_PROJECTS and ALLOWED_DOMAINS do not permit any more, and that have left something: nothing is
-- done in them. collect-stats keeps the list.
create table unserved_projects (
    project_id text        primary key,
    domain_id  text        not null, -- '' = unknown
    since      timestamptz not null default clock_timestamp()
);
