-- +goose Up

-- The connection that an agent is deployed through, which its bundle ends with; null is the project's own token.
alter table deployments add column connection_id uuid;
update deployments d set connection_id = i.connection_id from instances i
where d.bundle is not null and i.project_id = d.project_id and i.id = d.instance_id and i.connection_id is not null;

-- +goose Down
alter table deployments drop column connection_id;
