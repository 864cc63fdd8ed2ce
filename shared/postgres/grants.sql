-- What the roles of functions may do, table by table. migrate runs it after the migrations, when the roles are there
-- (knative/roles.sql makes them); each time all is said anew.
select pg_advisory_xact_lock(7166736203); -- two at once would get in each other's way
do $$
begin
    if exists (select from pg_roles where rolname = 'cloudfn_functions') then
        -- Functions that serve HTTP. What was logged or told is neither changed nor taken back.
        revoke all on all tables in schema public from cloudfn_functions;
        grant usage on schema public to cloudfn_functions;
        grant select on goose_db_version, stats_hourly, stats_projects, connection_resources to cloudfn_functions;
        grant select, insert on requests, events to cloudfn_functions;
        grant select, insert, update on orders, instances, deliveries, streams to cloudfn_functions;
        grant select, insert on actions to cloudfn_functions;
        grant select, insert, update on create_calls to cloudfn_functions;
        grant select, insert on unexpected_servers to cloudfn_functions;
        grant select (id, project_id, domain_id, user_id, name, kind, auth_url, region, delegation_id, acts_as, actions, quota, limits, usable_by,
                      usable_names, flavors, status, reason, revoked, trust_expires_at, revocation_pending_since, expires_at, idle_timeout, last_used_at, seq,
                      created_at, updated_at, checked_at, next_check_at, check_until, check_failed_at, check_error), insert,
               update (status, reason, secret, revoked, last_used_at, seq, updated_at, next_check_at)
            on connections to cloudfn_functions; -- the secret is wiped, and not read; what is stored goes nowhere else, nor any further
        grant select, insert, update, delete on callbacks, deployments, keyed_actions to cloudfn_functions;
        grant select, insert, delete on sessions to cloudfn_functions; -- one begins and ends, and is never made another's
    end if;
    if exists (select from pg_roles where rolname = 'cloudfn_events') then
        -- poll-instances, deliver-events and run-connections. collect-stats adds partitions, and is the owner.
        revoke all on all tables in schema public from cloudfn_events;
        grant usage on schema public to cloudfn_events;
        grant select on goose_db_version to cloudfn_events;
        grant select, insert, update on orders, instances, create_calls to cloudfn_events;
        grant select, insert on unexpected_servers to cloudfn_events;
        grant select, insert, update, delete on polls, jobs, events, deliveries, streams, callbacks, connections, actions,
            deployments, connection_resources to cloudfn_events;
        grant select, delete on keyed_actions to cloudfn_events; -- what is old is forgotten
    end if;
end $$;
