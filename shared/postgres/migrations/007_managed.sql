-- +goose Up

-- Named templates of managed resources: a spec that a resource may begin with.
create table flavors (
    project_id  text        not null,
    name        text        collate "C" not null,
    id          uuid        not null unique,
    domain_id   text        not null,
    user_id     text        not null, -- who changed it last
    kind        text        not null,
    provider    text        not null,
    description text        not null default '',
    spec        jsonb       not null,
    version     bigint      not null default 1, -- of its ETag
    created_at  timestamptz not null default clock_timestamp(),
    updated_at  timestamptz not null default clock_timestamp(),
    primary key (project_id, name)
);

-- A project with managed resources is due work: reconcile-managed claims it at due_at, and writes its resources under
-- that claim.
create table managed_projects (
    project_id    text        primary key,
    domain_id     text        not null,
    due_at        timestamptz not null default clock_timestamp(),
    attempts      integer     not null default 0, -- of what fails for the whole project, such as a login
    problem       jsonb,
    claim_id      uuid,
    claimed_until timestamptz,
    scan_at       timestamptz not null default clock_timestamp() -- when all of its resources are read
);
create index managed_projects_due on managed_projects (due_at);

create table managed (
    project_id        text        not null references managed_projects,
    id                uuid        not null,
    kind              text        not null,
    name              text        collate "C" not null,
    user_id           text        not null, -- who declared it last; reconcile-managed acts in that name
    connection_id     uuid,       -- the trust with which it does
    provider          text        not null,
    flavor            text        not null default '', -- the template that its spec began with
    labels            jsonb       not null default '{}',
    schedule          jsonb       not null default '{}', -- domain.ScheduleRule
    repair            text        not null check (repair in ('auto', 'manual')),
    max_revisions     integer     not null,
    revision          integer     not null, -- what is declared
    observed_revision integer     not null default 0, -- what is real
    request           text        not null -- what is to be done
        check (request in ('', 'create', 'update', 'delete')),
    status            text        not null
        check (status in ('pending', 'creating', 'updating', 'ready', 'degraded', 'error', 'deleting')),
    reason            text        not null default '', -- of the status
    conditions        jsonb       not null default '[]', -- domain.Condition
    drift             jsonb       not null default '[]', -- domain.Drift
    actor             jsonb,
    version           bigint      not null default 1, -- of its ETag: grows with each change of what is declared
    seq               bigint      not null default 1, -- of its last event
    created_at        timestamptz not null default clock_timestamp(),
    updated_at        timestamptz not null default clock_timestamp(),
    orphan            boolean     not null default false, -- when it is deleted, its objects stay in OpenStack
    -- When it is due. null = it is as declared, and is not read until a change is reported or all of the project are
    -- scanned.
    next_at           timestamptz default clock_timestamp(),
    -- How often it was declared, the same again included. A round of reconcile-managed that began before a declaration
    -- does not write its failures over the attempts, which begin again with it.
    declarations      integer     not null default 1,
    primary key (project_id, kind, name),
    unique (project_id, id)
);

-- What was declared. A row never changes.
create table managed_revisions (
    project_id  text        not null,
    managed_id  uuid        not null,
    number      integer     not null,
    flavor      text        not null default '',
    spec        jsonb       not null, -- without secrets
    secrets     bytea,      -- domain.ManagedSecrets, encrypted to reconcile-managed
    digest      bytea       not null default '', -- of the secrets and the resource's id: shows whether secrets differ
    labels      jsonb       not null default '{}',
    schedule    jsonb       not null default '{}',
    rolled_back integer     not null default 0, -- the revision that this one repeats
    user_id     text        not null,
    created_at  timestamptz not null default clock_timestamp(),
    user_name   text        not null default '', -- as Keystone gave it then
    primary key (project_id, managed_id, number),
    foreign key (project_id, managed_id) references managed (project_id, id) on delete cascade
);

-- The objects of OpenStack that make a resource: one, or many of a deployment. Each carries the member's id.
create table managed_members (
    project_id    text        not null,
    id            uuid        not null, -- the mark of the object, such as a tag; of a server, its instance id
    managed_id    uuid        not null,
    ordinal       integer     not null, -- of a deployment: the number in its name
    revision      integer     not null, -- that it was made or updated to
    object_id     text        not null default '', -- '' = not made yet
    status        text        not null check (status in ('creating', 'ready', 'updating', 'error', 'deleting')),
    reason        text        not null default '',
    node          text        not null default '', -- the host that it runs on, by watch-nodes
    attempts      integer     not null default 0, -- of the step that fails
    retry_at      timestamptz, -- not before
    created_at    timestamptz not null default clock_timestamp(),
    updated_at    timestamptz not null default clock_timestamp(),
    -- An object that OpenStack does not find by its id counts as deleted at the second read, some time after the first.
    missed_at     timestamptz,
    -- The last change that OpenStack has accepted, and how often in a row: one that changes nothing is not repeated
    -- without end.
    written       text        not null default '',
    writes        integer     not null default 0,
    -- It was as declared at some time. Until then it is new.
    was_ready     boolean     not null default false,
    -- Its object worked at some time, as declared or not: no error of OpenStack deletes it.
    may_have_data boolean     not null default false,
    -- A call that makes its object may have been sent, for what the member's own revision declares.
    is_requested  boolean     not null default false,
    -- Its reason is what its next step waits for.
    is_waiting    boolean     not null default false,
    -- A digest of what the user_data of its server were made from; '' = not known. The files of configmaps change
    -- without a revision of the server, and Nova shows user_data to admins only.
    user_data     text        not null default '',
    -- A rebuild of its server may have been sent since the server was as declared. Then its image is compared by id,
    -- because it may be that of a revision which another one has followed.
    is_rebuilt    boolean     not null default false,
    -- How many calls may have made an object of the member. Only two calls may make two objects: otherwise a second one
    -- with its mark is a copy.
    create_calls  integer     not null default 0,
    primary key (project_id, id),
    foreign key (project_id, managed_id) references managed (project_id, id) on delete cascade,
    -- reconcile-managed compares with the revision, so it must exist.
    constraint managed_members_revision_fkey
        foreign key (project_id, managed_id, revision) references managed_revisions
);
create index managed_members_managed on managed_members (project_id, managed_id, ordinal);
create index managed_members_object on managed_members (object_id) where object_id <> '';

-- Objects of OpenStack that carry cloudfn's mark and belong to no member, so that one event reports each. Those that a
-- deletion with `orphan` has left are known, and no event reports them.
create table unexpected_objects (
    project_id  text        not null,
    object_id   text        not null,
    provider    text        not null,
    region      text        not null default '',
    name        text        not null,
    is_orphan   boolean     not null default false,
    found_at    timestamptz not null,
    reported_at timestamptz,
    missed_at   timestamptz, -- since when scans do not find it: its row is deleted a day later
    primary key (project_id, object_id)
);

-- A server that changes in Nova makes its resource due. Functions that write instances need no rights on managed
-- resources. A member that is being made, changed or deleted is read in any case. The project is locked before its
-- resources, as everywhere; the instance is locked already.
-- +goose StatementBegin
create function wake_managed() returns trigger language plpgsql security definer
set search_path = pg_catalog, public, pg_temp as $$
declare
    of uuid := (select managed_id from managed_members
                where project_id = new.project_id and id = new.id and status in ('ready', 'error'));
begin
    if of is not null then
        update managed_projects set due_at = least(due_at, now()) where project_id = new.project_id;
        update managed set next_at = clock_timestamp() where project_id = new.project_id and id = of;
    end if;
    return null;
end $$;
-- +goose StatementEnd
create trigger wake_managed after update of state, raw_status, name, server_id, nova_at on instances for each row
    when ((new.state, new.raw_status, new.name, new.server_id, new.nova_at)
          is distinct from (old.state, old.raw_status, old.name, old.server_id, old.nova_at))
    execute function wake_managed();
