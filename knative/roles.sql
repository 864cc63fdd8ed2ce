-- The roles that functions use: cloudfn_functions serve HTTP, cloudfn_events are poll-instances, run-connections and
-- deliver-events. Neither can change or drop a table. migrate grants what each needs of each table, so run this before it, as
-- who may make roles, any number of times:
--   psql "$OWNER_DATABASE_URL" -v password=... -f knative/roles.sql
\set ON_ERROR_STOP on
select format('create role %I login', name) from unnest(array['cloudfn_functions', 'cloudfn_events']) name
where not exists (select from pg_roles where rolname = name) \gexec
alter role cloudfn_functions password :'password';
alter role cloudfn_events password :'password';
-- An earlier version of this file granted everything on every table to come.
alter default privileges in schema public revoke all on tables from cloudfn_functions;
alter default privileges in schema public revoke all on sequences from cloudfn_functions;
-- The timeouts of the functions' connections. The functions set the same ones themselves where a role has none, but behind
-- PgBouncer in transaction mode only the role's reach every connection. The owner has none: migrate and collect-stats, which
-- adds and drops partitions, set their own.
alter role cloudfn_functions set statement_timeout = '1min';
alter role cloudfn_functions set lock_timeout = '10s';
alter role cloudfn_functions set idle_in_transaction_session_timeout = '1min';
alter role cloudfn_events set statement_timeout = '1min';
alter role cloudfn_events set lock_timeout = '10s';
alter role cloudfn_events set idle_in_transaction_session_timeout = '1min';
