select pg_advisory_xact_lock(7166736203); -- one migration at a time

-- Counts events and deliveries that a request writes for the limit of its project, which the transaction names.
-- Without a limit nothing counts.
create or replace function count_events(units integer) returns void
language plpgsql as $$
begin
    if coalesce(current_setting('cloudfn.event_budget', true), '') <> '' then
        perform set_config('cloudfn.event_units',
            (coalesce(nullif(current_setting('cloudfn.event_units', true), ''), '0')::bigint + units)::text, true);
    end if;
end $$;

-- Takes what a transaction has counted from the limit, or refuses it. It is the transaction's last statement, because
-- the limit's row stays locked until the end for all others of the project. What was accepted moves the row by two
-- minutes at most, so that no one waits longer than one.
create or replace function charge_events() returns void
language plpgsql security definer set search_path = public, pg_temp as $$
declare
    budget jsonb := current_setting('cloudfn.event_budget')::jsonb; -- {"source", "per_minute", "accepted"}
    units bigint := coalesce(nullif(current_setting('cloudfn.event_units', true), ''), '0');
    each interval := interval '1 minute' / (budget->>'per_minute')::integer;
    wait interval;
begin
    if units = 0 then
        return;
    end if;
    insert into rate_limits as l (name, source, used_up)
    values ('event', budget->>'source', clock_timestamp() + least(each * units, interval '2 minutes'))
    on conflict (name, source) do update
    set used_up = greatest(l.used_up,
        least(greatest(l.used_up, clock_timestamp()) + each * units, clock_timestamp() + interval '2 minutes'))
    where (budget->>'accepted')::boolean or l.used_up + each <= clock_timestamp() + interval '1 minute';
    if not found then
        select l.used_up + each - clock_timestamp() - interval '1 minute' into wait
        from rate_limits l where l.name = 'event' and l.source = budget->>'source';
        raise exception 'too many events' using errcode = 'CF429',
            detail = ceil(greatest(extract(epoch from wait), 1)), hint = budget->>'per_minute';
    end if;
end $$;

-- Writes the deliveries of a new event, and adds them to the streams of their callbacks. It has the rights of its
-- owner, so a function that inserts events needs none to callbacks and connections. migrate runs this file every time.
create or replace function fan_out() returns trigger
language plpgsql security definer set search_path = public, pg_temp as $$
declare
    written integer;
begin
    with matching as (
        select c.project_id, c.id from callbacks c
        where (coalesce(c.of_project, c.project_id) = new.project_id or c.project_id = '')
          and c.status <> 'gone'
          and (c.events = '{}' or new.type = any(c.events))
          and (c.instance_id is null or c.instance_id::text = new.data->>'instance_id')
          and (c.order_id is null or c.order_id = new.order_id)
          -- A callback is not notified of itself. Another project may use its id for something else.
          and not (new.type = 'cloudfn.callback.state.v1' and c.project_id = new.project_id
                   and c.id::text = new.subject)
          -- Subscribers who may no longer act through the connection are notified only that it has ended.
          and (c.connection_id is null or c.connection_id = new.connection_id and exists (
              select from connections k where k.id = c.connection_id and k.project_id = new.project_id
                and (k.status = 'active' and k.expires_at > new.at or new.type = 'cloudfn.connection.state.v1')
                and (k.usable_by && array[c.user_id, c.project_id]
                     or k.user_id = c.user_id and k.project_id = c.project_id)))
        for key share of c -- a callback that is being deleted is left out, and does not fail the writer of the event
    ), delivery as (
        insert into deliveries (project_id, callback_id, stream, seq, event_project, subject, event_seq, created_at)
        select project_id, id, new.project_id || '/' || new.subject, new.seq, new.project_id, new.subject, new.seq,
               new.at
        from matching
    )
    insert into streams as s (project_id, callback_id, stream, head, tail, next_at)
    select project_id, id, new.project_id || '/' || new.subject, new.seq - 1, new.seq, new.at
    from matching
    -- The stream's row is locked, so that no replica that delivers can find it empty meanwhile.
    on conflict (project_id, callback_id, stream) do update
    set tail = excluded.tail, next_at = case when s.head < s.tail then s.next_at else excluded.next_at end;
    get diagnostics written = row_count;
    perform count_events(1 + written);
    return null;
end $$;

do $$ begin
    if not exists (select from pg_trigger where tgname = 'fan_out' and tgrelid = 'events'::regclass) then
        create trigger fan_out after insert on events for each row when (new.type <> 'cloudfn.callback.test.v1')
            execute function fan_out();
    end if;
end $$;
