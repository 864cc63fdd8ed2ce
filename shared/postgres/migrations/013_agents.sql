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

-- +goose StatementBegin
create or replace function fan_out() returns trigger language plpgsql as $$
begin
    with matching as (
        select c.project_id, c.id from callbacks c
        where (coalesce(c.of_project, c.project_id) = new.project_id or c.project_id = '')
          and c.status <> 'gone'
          and (c.events = '{}' or new.type = any(c.events))
          and (c.instance_id is null or c.instance_id::text = new.data->>'instance_id')
          and (c.order_id is null or c.order_id = new.order_id)
          -- A callback is not notified of itself. What has its id in another project is something else.
          and not (new.type = 'cloudfn.callback.state.v1' and c.project_id = new.project_id and c.id::text = new.subject)
          -- Whoever may not act through the connection any more hears no more of it but that it has ended.
          and (c.connection_id is null or c.connection_id = new.connection_id and exists (
              select from connections k where k.id = c.connection_id and k.project_id = new.project_id
                and (k.status = 'active' and k.expires_at > new.at or new.type = 'cloudfn.connection.state.v1')
                and (k.usable_by && array[c.user_id, c.project_id] or k.user_id = c.user_id and k.project_id = c.project_id)))
        for key share of c -- one that is being deleted is left out, and does not fail whoever writes the event
    ), delivery as (
        insert into deliveries (project_id, callback_id, stream, seq, event_project, subject, event_seq, created_at)
        select project_id, id, new.project_id || '/' || new.subject, new.seq, new.project_id, new.subject, new.seq, new.at
        from matching
    )
    insert into streams as s (project_id, callback_id, stream, head, tail, next_at)
    select project_id, id, new.project_id || '/' || new.subject, new.seq - 1, new.seq, new.at
    from matching
    -- The stream's row is locked, so that no copy that delivers can take it for empty meanwhile.
    on conflict (project_id, callback_id, stream) do update
    set tail = excluded.tail, next_at = case when s.head < s.tail then s.next_at else excluded.next_at end;
    return null;
end $$;
-- +goose StatementEnd

-- +goose Down
drop table keyed_actions;
alter table actions drop column body_sha256;
-- +goose StatementBegin
create or replace function fan_out() returns trigger language plpgsql as $$
begin
    with matching as (
        select c.project_id, c.id from callbacks c
        where (coalesce(c.of_project, c.project_id) = new.project_id or c.project_id = '')
          and c.status <> 'gone'
          and (c.events = '{}' or new.type = any(c.events))
          and (c.instance_id is null or c.instance_id::text = new.data->>'instance_id')
          and (c.order_id is null or c.order_id = new.order_id)
          and c.id::text <> new.subject
          -- Whoever may not act through the connection any more hears no more of it but that it has ended.
          and (c.connection_id is null or c.connection_id = new.connection_id and exists (
              select from connections k where k.id = c.connection_id and k.project_id = new.project_id
                and (k.status = 'active' and k.expires_at > new.at or new.type = 'cloudfn.connection.state.v1')
                and (k.usable_by && array[c.user_id, c.project_id] or k.user_id = c.user_id and k.project_id = c.project_id)))
        for key share of c -- one that is being deleted is left out, and does not fail whoever writes the event
    ), delivery as (
        insert into deliveries (project_id, callback_id, stream, seq, event_project, subject, event_seq, created_at)
        select project_id, id, new.project_id || '/' || new.subject, new.seq, new.project_id, new.subject, new.seq, new.at
        from matching
    )
    insert into streams as s (project_id, callback_id, stream, head, tail, next_at)
    select project_id, id, new.project_id || '/' || new.subject, new.seq - 1, new.seq, new.at
    from matching
    -- The stream's row is locked, so that no copy that delivers can take it for empty meanwhile.
    on conflict (project_id, callback_id, stream) do update
    set tail = excluded.tail, next_at = case when s.head < s.tail then s.next_at else excluded.next_at end;
    return null;
end $$;
-- +goose StatementEnd
alter table deployments drop column connection_id;
