-- The months of the request log. collect-stats makes and drops them by these functions, because only the owner of a
-- table may. migrate runs this file every time.
create or replace function make_requests_month(month timestamptz) returns void
language plpgsql security definer set search_path = public, pg_temp as $$
declare
    name text := to_char(month at time zone 'UTC', '"requests_"YYYYMM');
    ends timestamptz := (month at time zone 'UTC' + interval '1 month') at time zone 'UTC';
    begins timestamptz; -- when the last month before it ends
begin
    if to_regclass(name) is not null then
        return;
    end if;
    if not exists (select from requests_default where at >= month and at < ends) then
        -- The whole table is locked first: a statement that has read the list of partitions, and then waits for the
        -- default one, would not see the rows that left it.
        lock table requests in access exclusive mode;
        if not exists (select from requests_default where at >= month and at < ends) then -- nor one written meanwhile
            execute format('create table %I partition of requests for values from (%L) to (%L)', name, month, ends);
            return;
        end if;
    end if;
    select max(m.ends) into begins
    from pg_inherits join pg_class t on t.oid = inhrelid,
        lateral (select (to_date(right(relname, 6), 'YYYYMM') + interval '1 month') at time zone 'UTC' as ends) m
    where inhparent = 'requests'::regclass and relname ~ '^requests_\d{6}$' and m.ends <= month;
    -- The default partition becomes the month's, because moving its rows would hold the lock for long. It covers all
    -- that came since the partition before it ended. Only rows between older partitions move.
    lock table requests in access exclusive mode;
    alter table requests detach partition requests_default;
    execute format('alter table requests_default rename to %I', name);
    create table requests_default partition of requests default;
    execute format('with strays as (delete from %I where at >= %L or at < %L returning *)
        insert into requests select * from strays', name, ends, begins);
    execute format('alter table requests attach partition %I for values from (%s) to (%L)', name,
        coalesce(quote_literal(begins), 'minvalue'), ends);
end $$;

create or replace function drop_requests_month(month timestamptz) returns void
language plpgsql security definer set search_path = public, pg_temp as $$
begin
    execute format('drop table if exists %I', to_char(month at time zone 'UTC', '"requests_"YYYYMM'));
end $$;

revoke execute on function make_requests_month(timestamptz), drop_requests_month(timestamptz) from public;
