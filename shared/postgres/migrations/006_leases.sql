-- +goose Up

-- Periods of a host, or of an instance, exclude one another: exclusion constraints over a text and a range.
create extension if not exists btree_gist;

-- Whether a cloud keeps servers without the trait off reservable hosts: the result of the last self-test.
create table isolation (
    region       text        primary key,
    result       text        not null check (result in ('proven', 'unproven')),
    detail       text        not null default '',
    tested_at    timestamptz not null default clock_timestamp(),
    -- A server on a reserved host is the reservation's if the isolation was proven before it came. A later self-test
    -- that proves it again does not change this. null = it is not proven.
    proven_since timestamptz
);

-- The trait of the pool's idle hosts. Nova takes required traits from images, too, so a user who knows it could land
-- servers there: only run-leases reads it.
create table pool_traits (
    is_only boolean primary key default true check (is_only),
    trait   text    not null default 'CUSTOM_CLOUDFN_POOL_' || upper(replace(gen_random_uuid()::text, '-', ''))
);
insert into pool_traits default values;

-- A row is due work, too: run-leases claims it at due_at.
create table leases (
    project_id        text        not null,
    id                uuid        not null,
    domain_id         text        not null,
    user_id           text        not null, -- who made it
    name              text        not null,
    status            text        not null
        check (status in ('pending', 'starting', 'active', 'ending', 'ended', 'cancelled', 'error')),
    problem           jsonb,
    degraded          boolean     not null default false, -- a host is down, and no other one is free
    starts_at         timestamptz not null,
    ends_at           timestamptz not null,
    before_end        interval    not null default '0', -- how long before the end the warning comes; 0 = no warning
    on_end            text        not null
        check (on_end in ('shelve', 'stop', 'snapshot_delete', 'delete', 'none')),
    connection_id     uuid,       -- its instances are changed through it; null = by the service account, or not at all
    order_id          uuid,       -- the order that it was made with
    actor             jsonb,      -- who requested the last change, for events
    start_result      text        not null default '' check (start_result in ('', 'done', 'skipped', 'failed')),
    started_at        timestamptz,
    end_result        text        not null default '' check (end_result in ('', 'done', 'failed')),
    ended_at          timestamptz,
    warned_at         timestamptz,
    seq               bigint      not null default 1, -- of its last event
    version           bigint      not null default 1, -- of its ETag: grows with each change that GET shows
    due_at            timestamptz, -- when run-leases has work; null = never again
    attempts          integer     not null default 0, -- of the step that fails
    claim_id          uuid,
    claimed_until     timestamptz,
    created_at        timestamptz not null default clock_timestamp(),
    updated_at        timestamptz not null default clock_timestamp(),
    enforce           boolean     not null default false, -- shelve the instance again at the start
    body_sha256       bytea,      -- of the request, when the caller chose the id
    shares_connection boolean     not null default false, -- the request named the connection: it outlives the lease
    -- When the end began, to limit how long it is tried. Before the start it marks a lease that was cancelled.
    ending_since      timestamptz,
    primary key (project_id, id),
    check (starts_at < ends_at)
);
create index leases_due on leases (due_at) where due_at is not null;
create index leases_connection on leases (connection_id) where connection_id is not null;

create table reservations (
    project_id   text        not null,
    id           uuid        not null,
    lease_id     uuid        not null,
    position     integer     not null,
    type         text        not null check (type in ('instance', 'host')),
    status       text        not null default 'pending' check (status in ('pending', 'active', 'ended')),
    problem      jsonb,
    instance_id  uuid,       -- of type instance
    action_id    uuid,       -- what run-connections does to the instance now
    want         jsonb,      -- of type host: domain.HostWant
    flavors      jsonb       not null default '[]', -- of type host: domain.LeasedFlavor
    aggregate_id bigint,
    is_open      boolean     not null default true, -- its lease has not ended
    -- When the instance of a pending lease was first as it waits for the start. A later change is its owner's.
    prepared_at  timestamptz,
    was_running  boolean     not null default false, -- before the lease shelved its instance
    during       tstzrange,  -- of the types instance and volume: the period of the lease
    -- The trait of the reservation's hosts.
    trait        text        not null
        default 'CUSTOM_CLOUDFN_LEASE_' || upper(replace(gen_random_uuid()::text, '-', '')),
    -- What run-leases has done to servers on its hosts to end them: [{id, name, did, locked, reset_at, resets}].
    servers      jsonb       not null default '[]',
    actions_done integer     not null default 0, -- of the types instance and volume: the next action has another id
    primary key (project_id, id),
    foreign key (project_id, lease_id) references leases on delete cascade,
    -- An instance is in one lease at a time.
    constraint reservations_instance exclude using gist (project_id with =, instance_id with =, during with &&)
        where (instance_id is not null and is_open)
);
create index reservations_lease on reservations (project_id, lease_id, position);

-- Which host a reservation has, and when: two never overlap. The period includes the time for cleaning after the end.
create table allocations (
    project_id     text        not null,
    reservation_id uuid        not null,
    node           text        collate "C" not null,
    during         tstzrange   not null,
    prepared_at    timestamptz, -- the host is the reservation's in Nova and Placement
    released_at    timestamptz, -- and is no longer
    -- Another host has replaced it: it is returned when no server of the reservation is on it.
    replaced_at    timestamptz,
    primary key (project_id, reservation_id, node),
    foreign key (project_id, reservation_id) references reservations on delete cascade,
    exclude using gist (node with =, during with &&) where (not isempty(during))
);
create index allocations_during on allocations using gist (during);
-- Hosts whose period has ended and that their lease has not returned are not booked.
create index allocations_held on allocations (upper(during)) include (node)
    where prepared_at is not null and released_at is null;

-- What a lease waits for makes it due: the end of its connection or of its action, a new state of its instance, and a
-- reserved host that goes down or comes up. The functions that write those need no rights on leases. 'epoch' is due by
-- any clock, and when run-leases stores what it has done, it shows that something happened meanwhile.
-- +goose StatementBegin
create function wake_leases() returns trigger language plpgsql security definer
set search_path = pg_catalog, public, pg_temp as $$
begin
    case tg_table_name
    when 'connections' then
        update leases set due_at = 'epoch'
        where project_id = new.project_id and connection_id = new.id and status not in ('ended', 'cancelled');
    when 'actions' then
        update leases l set due_at = 'epoch'
        where l.project_id = new.project_id and l.connection_id = new.connection_id
          and l.status not in ('ended', 'cancelled')
          and exists (select from reservations r where r.project_id = l.project_id and r.lease_id = l.id
                        and r.action_id = new.id);
    else
        update leases set due_at = 'epoch'
        where project_id = new.project_id and id = new.lease_id and status not in ('ended', 'cancelled');
    end case;
    return null;
end $$;
-- +goose StatementEnd
create trigger wake_leases after update of status on connections for each row
    when (new.status <> 'active' and old.status = 'active') execute function wake_leases();
create trigger wake_leases after update of status on actions for each row
    when (new.status <> 'running' and old.status = 'running' and new.connection_id is not null)
    execute function wake_leases();
create trigger wake_leases after update of state on instances for each row
    when (new.lease_id is not null and new.state <> old.state) execute function wake_leases();

-- +goose StatementBegin
create function wake_leases_of_node() returns trigger language plpgsql security definer
set search_path = pg_catalog, public, pg_temp as $$
begin
    update leases l set due_at = 'epoch'
    where l.due_at is not null and l.status in ('starting', 'active', 'ending')
      and exists (select from reservations r
                  join allocations a on a.project_id = r.project_id and a.reservation_id = r.id
                  where r.project_id = l.project_id and r.lease_id = l.id and a.node = new.name
                    and a.prepared_at is not null and a.released_at is null);
    return null;
end $$;
-- +goose StatementEnd
create trigger wake_leases after update of status on nodes for each row
    when (new.status <> old.status and 'down' in (new.status, old.status) and new.pool <> '')
    execute function wake_leases_of_node();
