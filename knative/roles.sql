-- Made from functions/*/function.go by `make generate`.
-- A role for each function, with a password of its own that is made from yours. None can change or drop a table.
-- migrate grants what each needs of each table, so run this before it, as who may make roles, any number of times:
--   psql "$OWNER_DATABASE_URL" -v password=... -v secrets=knative/overlays/my-cloud/secrets -f knative/roles.sql
-- With secrets it writes database.env and userlist.txt there, for the overlay. host is PgBouncer's, or Postgres's.
\set ON_ERROR_STOP on
\if :{?host}
\else
  \set host pgbouncer:6432
\endif
create temp table functions as
select name, 'cloudfn_' || replace(name, '-', '_') as role,
    encode(sha256(convert_to(name || ':' || :'password', 'UTF8')), 'hex') as password
from unnest(array[
    'agents',
    'callbacks',
    'clock',
    'collect-stats',
    'connections',
    'console',
    'deliver-events',
    'floating-ips',
    'launch',
    'leases',
    'managed',
    'nodes',
    'poll-instances',
    'reconcile-managed',
    'resources',
    'run-connections',
    'run-leases',
    'security-groups',
    'servers',
    'stats',
    'volumes',
    'watch-nodes'
]) name order by name;
select format('create role %I login', role) from functions
where not exists (select from pg_roles where rolname = role) \gexec
select format('alter role %I password %L', role, password) from functions \gexec
-- The timeouts of the functions' connections. The functions set the same ones themselves where a role has none, but
-- behind PgBouncer in transaction mode only the role's reach every connection. migrate sets those of the owner.
select format('alter role %I set %s = %L', role, timeout, value) from functions, (values
    ('statement_timeout', '1min'), ('lock_timeout', '10s'), ('idle_in_transaction_session_timeout', '1min')
) as timeouts (timeout, value) \gexec
\if :{?secrets}
  \pset format unaligned
  \pset tuples_only
  \set file :secrets /database.env
  \o :file
  select format('%s=postgres://%s:%s@%s/%s?default_query_exec_mode=cache_describe', name, role, password, :'host',
      current_database()) from functions;
  \set file :secrets /userlist.txt
  \o :file
  select format('"%s" "%s"', role, password) from functions;
  \o
\endif
