-- +goose Up

-- Projects that ALLOWED_PROJECTS and ALLOWED_DOMAINS no longer let in, and that have left something: nothing is done in them.
-- collect-stats keeps the list.
create table unserved_projects (
    project_id text        primary key,
    domain_id  text        not null, -- '' = unknown
    since      timestamptz not null default clock_timestamp()
);

-- +goose Down
drop table unserved_projects;
