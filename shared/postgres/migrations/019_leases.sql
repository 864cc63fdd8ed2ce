-- +goose Up

-- Ranges of one host exclude one another (allocations).
create extension if not exists btree_gist;

-- The hosts of compute that run-leases follows: those that an admin made reservable, or is about to.
create table nodes (
    name         text        collate "C" primary key, -- Nova's name of the host
    region       text        not null default '',
    zone         text        not null default '',
    pool         text        not null check (pool in ('joining', 'reservable', 'leaving')),
    reason       text        not null default '', -- why it does not join or leave
    is_up        boolean     not null default true,
    provider_id  text        not null default '', -- its resource provider in Placement
    vcpus        integer     not null default 0, -- what servers may use: with Placement's ratios, without what it reserves
    ram_mb       integer     not null default 0,
    disk_gb      integer     not null default 0,
    traits       text[]      not null default '{}',
    attributes   jsonb       not null default '{}', -- texts by name: hypervisor_type, cpu_info:arch, ...
    requested_by text        not null default '', -- the user id of the admin
    seen_at      timestamptz, -- when Nova and Placement were asked
    down_since   timestamptz,
    updated_at   timestamptz not null default clock_timestamp()
);

-- Whether this cloud keeps servers without the trait off reservable hosts: what the last self-test found.
create table isolation (
    region    text        primary key,
    result    text        not null check (result in ('proven', 'unproven')),
    detail    text        not null default '',
    tested_at timestamptz not null default clock_timestamp()
);

-- A row is due work, too: run-leases claims it at due_at.
create table leases (
    project_id    text        not null,
    id            uuid        not null,
    domain_id     text        not null,
    user_id       text        not null, -- who made it
    name          text        not null,
    status        text        not null check (status in ('pending', 'starting', 'active', 'ending', 'ended', 'cancelled', 'error')),
    problem       jsonb,
    degraded      boolean     not null default false, -- a host is down, and there is no other
    starts_at     timestamptz not null,
    ends_at       timestamptz not null,
    before_end    interval    not null default '0', -- the warning comes so long before the end; 0 = none
    on_end        text        not null check (on_end in ('shelve', 'stop', 'snapshot_delete', 'delete')),
    connection_id uuid,       -- what its instances are handled with; null = the service account, or nothing
    order_id      uuid,       -- the order that it was made with
    actor         jsonb,      -- who asked for the last change, for events
    start_result  text        not null default '' check (start_result in ('', 'done', 'skipped', 'failed')),
    started_at    timestamptz,
    end_result    text        not null default '' check (end_result in ('', 'done', 'failed')),
    ended_at      timestamptz,
    warned_at     timestamptz,
    seq           bigint      not null default 1, -- of its last event
    version       bigint      not null default 1, -- of its ETag: grows with each change that GET shows
    due_at        timestamptz, -- when run-leases has work; null = never again
    attempts      integer     not null default 0, -- of the step that fails
    claim_id      uuid,
    claimed_until timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    updated_at    timestamptz not null default clock_timestamp(),
    primary key (project_id, id),
    check (starts_at < ends_at)
);
create index leases_due on leases (due_at) where due_at is not null;

create table reservations (
    project_id   text        not null,
    id           uuid        not null,
    lease_id     uuid        not null,
    position     integer     not null,
    type         text        not null check (type in ('instance', 'host')),
    status       text        not null default 'pending' check (status in ('pending', 'active', 'ended', 'error')),
    problem      jsonb,
    instance_id  uuid,       -- of type instance
    action_id    uuid,       -- what run-connections does to the instance now
    want         jsonb,      -- of type host: domain.HostWant
    flavors      jsonb       not null default '[]', -- of type host: domain.LeasedFlavor
    aggregate_id bigint,
    is_open      boolean     not null default true, -- its lease has not ended
    primary key (project_id, id),
    foreign key (project_id, lease_id) references leases on delete cascade
);
create index reservations_lease on reservations (project_id, lease_id, position);
-- An instance is in one lease at a time.
create unique index reservations_instance on reservations (project_id, instance_id) where instance_id is not null and is_open;

-- Which host a reservation has, and when: two never overlap. It includes the time for cleaning after the end.
create table allocations (
    project_id     text      not null,
    reservation_id uuid      not null,
    node           text      collate "C" not null,
    during         tstzrange not null,
    prepared_at    timestamptz, -- in Nova and Placement the host is the reservation's
    released_at    timestamptz, -- and is not any more
    primary key (project_id, reservation_id, node),
    foreign key (project_id, reservation_id) references reservations on delete cascade,
    exclude using gist (node with =, during with &&) where (not isempty(during))
);
create index allocations_during on allocations using gist (during);

alter table connections add column lease_id uuid; -- what is delegated is for this lease only
alter table instances add column lease_id uuid;

-- +goose Down
-- Without leases anybody could use what was delegated to one.
update connections set status = 'deleted', reason = 'leases were removed', secret = null
where lease_id is not null and status = 'active';
alter table instances drop column lease_id;
alter table connections drop column lease_id;
drop table allocations, reservations, leases, isolation, nodes;
