-- Made from functions/*/function.go by `make generate`.
-- What the database roles of functions may do. migrate runs it after the migrations, every time, when the roles exist
-- (knative/roles.sql makes them).
select pg_advisory_xact_lock(7166736203); -- two at once would get in each other's way
do $$
begin
    if exists (select from pg_roles where rolname = 'cloudfn_functions') then
        revoke all on all tables in schema public from cloudfn_functions;
        grant usage on schema public to cloudfn_functions;
        grant insert, select, update (connection_id) on actions to cloudfn_functions;
        grant delete, insert, select, update on allocations to cloudfn_functions;
        grant delete, insert, select, update on callbacks to cloudfn_functions;
        grant insert, select, update on connection_requests to cloudfn_functions;
        grant select on connection_resources to cloudfn_functions;
        grant insert, select (actions, acts_as, auth_url, check_error, check_failed_at, check_until, checked_at, created_at, credential_expires_at, delegation_id, domain_id, expires_at, flavors, generation, id, idle_timeout, kind, last_used_at, lease_id, limits, managed, name, next_check_at, project_id, quota, reason, region, resumed_at, revocation_pending_since, revoked, seq, status, suspended_at, trust_expires_at, updated_at, usable_by, usable_names, user_id), update (actions, acts_as, checked_at, credential_expires_at, delegation_id, expires_at, flavors, generation, idle_timeout, last_used_at, limits, name, next_check_at, quota, reason, resumed_at, revoked, secret, seq, status, suspended_at, trust_expires_at, updated_at, usable_by, usable_names) on connections to cloudfn_functions;
        grant insert, select, update on create_calls to cloudfn_functions;
        grant insert, select, update on deliveries to cloudfn_functions;
        grant delete, insert, select, update on deployments to cloudfn_functions;
        grant select on drain_servers to cloudfn_functions;
        grant insert, select, update on drains to cloudfn_functions;
        grant insert, select on events to cloudfn_functions;
        grant delete, insert, select, update on flavors to cloudfn_functions;
        grant select on goose_db_version to cloudfn_functions;
        grant insert, select, update on instances to cloudfn_functions;
        grant select on isolation to cloudfn_functions;
        grant delete, insert, select, update on keyed_actions to cloudfn_functions;
        grant insert, select, update on leases to cloudfn_functions;
        grant insert, select, update on managed to cloudfn_functions;
        grant select, update (attempts, retry_at) on managed_members to cloudfn_functions;
        grant insert, select, update on managed_projects to cloudfn_functions;
        grant delete, insert, select on managed_revisions to cloudfn_functions;
        grant delete, insert, select, update on node_tokens to cloudfn_functions;
        grant delete, insert, select, update on nodes to cloudfn_functions;
        grant insert, select, update on orders to cloudfn_functions;
        grant insert, select, update on rate_limits to cloudfn_functions;
        grant insert, select on requests to cloudfn_functions;
        grant insert, select, update on reservations to cloudfn_functions;
        grant delete, insert, select on sessions to cloudfn_functions;
        grant select on stats_hourly to cloudfn_functions;
        grant select on stats_projects to cloudfn_functions;
        grant select on stats_sums to cloudfn_functions;
        grant insert, select, update on streams to cloudfn_functions;
        grant delete, insert, select, update on trusts_to_revoke to cloudfn_functions;
        grant insert, select on unexpected_servers to cloudfn_functions;
    end if;
    if exists (select from pg_roles where rolname = 'cloudfn_events') then
        revoke all on all tables in schema public from cloudfn_events;
        grant usage on schema public to cloudfn_events;
        grant delete, insert, select, update on actions to cloudfn_events;
        grant delete, insert, select, update on allocations to cloudfn_events;
        grant delete, insert, select, update on callbacks to cloudfn_events;
        grant delete, select, update on connection_requests to cloudfn_events;
        grant delete, insert, select, update on connection_resources to cloudfn_events;
        grant delete, insert, select, update on connections to cloudfn_events;
        grant insert, select, update on create_calls to cloudfn_events;
        grant delete, insert, select, update on deliveries to cloudfn_events;
        grant delete, insert, select, update on deployments to cloudfn_events;
        grant insert, select, update on drain_servers to cloudfn_events;
        grant delete, insert, select, update on drains to cloudfn_events;
        grant delete, insert, select, update on events to cloudfn_events;
        grant select on goose_db_version to cloudfn_events;
        grant insert, select, update on instances to cloudfn_events;
        grant insert, select, update on isolation to cloudfn_events;
        grant delete, insert, select, update on jobs to cloudfn_events;
        grant delete, select on keyed_actions to cloudfn_events;
        grant delete, insert, select, update on leases to cloudfn_events;
        grant delete, select, update on managed to cloudfn_events;
        grant delete, insert, select, update on managed_members to cloudfn_events;
        grant delete, select, update on managed_projects to cloudfn_events;
        grant delete, select on managed_revisions to cloudfn_events;
        grant insert, select, update on monitors to cloudfn_events;
        grant delete, insert, select, update on nodes to cloudfn_events;
        grant insert, select, update on orders to cloudfn_events;
        grant delete, insert, select, update on polls to cloudfn_events;
        grant insert, select, update on reservations to cloudfn_events;
        grant delete, insert, select, update on streams to cloudfn_events;
        grant delete, insert, select, update on trusts_to_revoke to cloudfn_events;
        grant insert, select on unexpected_servers to cloudfn_events;
    end if;
end $$;
