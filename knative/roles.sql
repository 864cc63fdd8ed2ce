-- The role that HTTP functions use: it reads and writes rows, and can neither change nor drop a table. Run it as the
-- owner of the schema, before or after migrate, any number of times:
--   psql "$OWNER_DATABASE_URL" -v password=... -f knative/roles.sql
\set ON_ERROR_STOP on
select format('create role cloudfn_functions login password %L', :'password')
where not exists (select from pg_roles where rolname = 'cloudfn_functions') \gexec
alter role cloudfn_functions password :'password';
grant usage on schema public to cloudfn_functions;
grant select, insert, update, delete on all tables in schema public to cloudfn_functions;
grant usage on all sequences in schema public to cloudfn_functions;
-- The tables of later migrations and the request log's later partitions.
alter default privileges in schema public grant select, insert, update, delete on tables to cloudfn_functions;
alter default privileges in schema public grant usage on sequences to cloudfn_functions;
