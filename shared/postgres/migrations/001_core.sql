-- +goose Up

-- The request log. `at` is the database's clock, so that rows of all copies are in one order on disk
-- (BRIN lives from that) and a month is the same month for everybody.
create table requests (
    id         uuid        not null,
    at         timestamptz not null default clock_timestamp(),
    function   text        not null,
    method     text        not null,
    path       text        not null,
    status     smallint    not null,
    ms         integer     not null,
    user_id    text        not null,
    project_id text        not null,
    domain_id  text        not null,
    request_id text        not null,
    remote     text        not null,
    code       text        not null
) partition by range (at);
create index requests_at on requests using brin (at);
create index requests_project on requests (project_id, id desc);
create index requests_domain on requests (domain_id, id desc);
create index requests_id on requests (id desc);
-- Rows land here when nobody made a partition for their month in time; the hourly tick moves them out.
create table requests_default partition of requests default;

create table orders (
    project_id    text        not null,
    id            uuid        not null,
    domain_id     text        not null,
    user_id       text        not null,
    body_sha256   bytea       not null,
    spec          jsonb       not null,
    status        text        not null check (status in ('running', 'done', 'partial', 'failed', 'rolled_back')),
    claim_id      uuid,
    claimed_until timestamptz,
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    -- The id is the caller's, so it is only unique within a project: another project that uses the same
    -- one must not learn that it exists.
    primary key (project_id, id)
);

create table instances (
    project_id text        not null,
    id         uuid        not null,
    order_id   uuid,
    position   integer     not null,
    name       text        not null,
    server_id  text,
    state      text        not null,
    raw_status text        not null default '',
    problem    jsonb,
    origin     text        not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (project_id, id),
    foreign key (project_id, order_id) references orders
);
create unique index instances_server on instances (project_id, server_id) where server_id is not null;
create index instances_order on instances (project_id, order_id);

create table stats_hourly (
    project_id text        not null,
    hour       timestamptz not null check (date_trunc('hour', hour, 'UTC') = hour),
    domain_id  text        not null,
    running    integer     not null check (running >= 0),
    total      integer     not null check (total >= running),
    by_status  jsonb       not null,
    source     text        not null check (source in ('sampled', 'rebuilt')),
    counted_at timestamptz not null default now(),
    primary key (project_id, hour)
);
create index stats_hourly_hour on stats_hourly (hour, domain_id);

-- The projects that collect-stats has to count, and from which hour to which it saw them: a sum over
-- projects is only known for an hour at which none of them is missing.
create table stats_projects (
    project_id text        primary key,
    domain_id  text        not null,
    first_hour timestamptz not null,
    last_hour  timestamptz not null check (last_hour >= first_hour)
);

-- Due work, keyed by what it is and for when: any copy may claim it, for a limited time.
create table jobs (
    kind          text        not null,
    key           text        not null,
    claim_id      uuid,
    claimed_until timestamptz,
    attempts      integer     not null default 0,
    error         text,
    done_at       timestamptz,
    created_at    timestamptz not null default now(),
    primary key (kind, key)
);

-- +goose Down
drop table jobs, stats_projects, stats_hourly, instances, orders, requests;
