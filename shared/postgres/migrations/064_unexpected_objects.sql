-- +goose Up

-- Objects of OpenStack that carry cloudfn's mark and belong to no member, so that one event reports each. Those that a
-- deletion with `orphan` has left are known, and no event reports them.
create table unexpected_objects (
    project_id text        not null,
    object_id  text        not null,
    provider   text        not null,
    region     text        not null default '',
    name       text        not null,
    is_orphan  boolean     not null default false,
    found_at   timestamptz not null,
    reported_at    timestamptz,
    primary key (project_id, object_id)
);

-- +goose Down
drop table unexpected_objects;
