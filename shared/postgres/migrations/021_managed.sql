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

-- A project with managed resources is due work: reconcile-managed claims it at due_at, and writes what it holds under
-- that claim.
create table managed_projects (
    project_id    text        primary key,
    domain_id     text        not null,
    due_at        timestamptz not null default clock_timestamp(),
    attempts      integer     not null default 0, -- of what fails for the whole project, such as a login
    problem       jsonb,
    claim_id      uuid,
    claimed_until timestamptz
);
create index managed_projects_due on managed_projects (due_at);

create table managed (
    project_id        text        not null references managed_projects,
    id                uuid        not null,
    kind              text        not null,
    name              text        collate "C" not null,
    user_id           text        not null, -- who declared it last; reconcile-managed acts in that name
    connection_id     uuid,                 -- the trust with which it does
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
    attempts          integer     not null default 0, -- of the step that fails
    retry_at          timestamptz, -- not before
    actor             jsonb,
    version           bigint      not null default 1, -- of its ETag: grows with each change of what is declared
    seq               bigint      not null default 1, -- of its last event
    created_at        timestamptz not null default clock_timestamp(),
    updated_at        timestamptz not null default clock_timestamp(),
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
    secrets     bytea,      -- sealed to reconcile-managed: domain.ManagedSecrets
    digest      bytea       not null default '', -- of the secrets, with the resource's id: says whether they differ
    labels      jsonb       not null default '{}',
    schedule    jsonb       not null default '{}',
    rolled_back integer     not null default 0, -- the revision that this one repeats
    user_id     text        not null,
    created_at  timestamptz not null default clock_timestamp(),
    primary key (project_id, managed_id, number),
    foreign key (project_id, managed_id) references managed (project_id, id) on delete cascade
);

-- The objects of OpenStack that make a resource: one, or of a deployment many. Each carries the member's id.
create table managed_members (
    project_id  text        not null,
    id          uuid        not null, -- the mark of the object: a tag, ...; a server's is its instance id
    managed_id  uuid        not null,
    ordinal     integer     not null, -- of a deployment: the number in its name
    revision    integer     not null, -- that it was made or updated to
    object_id   text        not null default '', -- '' = not made yet
    status      text        not null check (status in ('creating', 'ready', 'updating', 'error', 'deleting')),
    reason      text        not null default '',
    node        text        not null default '', -- the host that it runs on, as watch-nodes sees it
    attempts    integer     not null default 0,
    retry_at    timestamptz,
    created_at  timestamptz not null default clock_timestamp(),
    updated_at  timestamptz not null default clock_timestamp(),
    primary key (project_id, id),
    foreign key (project_id, managed_id) references managed (project_id, id) on delete cascade
);
create index managed_members_managed on managed_members (project_id, managed_id, ordinal);
create index managed_members_object on managed_members (object_id) where object_id <> '';

-- What is delegated is for managed resources only.
alter table connections add column managed boolean not null default false;

-- +goose Down
-- Without managed resources anybody could use what was delegated for them.
update connections set status = 'deleted', reason = 'managed resources were removed', secret = null
where managed and status = 'active';
alter table connections drop column managed;
drop table managed_members, managed_revisions, managed, managed_projects, flavors;
