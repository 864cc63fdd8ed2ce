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
