-- +goose Up

-- The connection that an agent is deployed through, which its bundle ends with; null is the project's own token.
alter table deployments add column connection_id uuid;
update deployments d set connection_id = i.connection_id from instances i
where d.bundle is not null and i.project_id = d.project_id and i.id = d.instance_id and i.connection_id is not null;

-- Actions that their callers gave an id, so that one which is sent again is done once. The hash is that of the request.
alter table actions add column body_sha256 bytea; -- null = the id is ours

-- The same for actions with the project's own token, which are done while the caller waits.
create table keyed_actions (
    project_id    text        not null,
    id            uuid        not null,
    body_sha256   bytea       not null,
    deployment_id uuid,  -- the last one that Nova was asked to rebuild the server for
    result        jsonb, -- what its caller was answered; null = nobody knows yet whether Nova accepted it
    claim_id      uuid,
    claimed_until timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    primary key (project_id, id)
);
create index keyed_actions_created on keyed_actions (created_at);

-- +goose Down
drop table keyed_actions;
alter table actions drop column body_sha256;
alter table deployments drop column connection_id;
