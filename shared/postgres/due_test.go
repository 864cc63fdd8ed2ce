package postgres_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// laterSQL fills each table with 100 000 rows that are due later. Rows of other tables that they refer to are missing.
const laterSQL = `
set session_replication_role = replica;
create temporary table n as select n, md5(n::text)::uuid as id, now() + interval '1 hour' as later
    from generate_series(1, 100000) n;
insert into connections (id, project_id, domain_id, user_id, kind, delegation_id, acts_as, actions, usable_by, status,
    expires_at, region, next_check_at, read_at, idle_timeout)
select id, 'p', 'd', 'u', 'trust', 't', '{}', '{}', '{}', 'active', later, 'r', later, later, '1 hour' from n;
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, connection_id, claimed_until)
select 'p', id, 'd', 'u', '', '{}', 'running', id, later from n;
insert into actions (project_id, id, connection_id, instance_id, user_id, verb, claimed_until)
select 'p', id, id, id, 'u', 'stop', later from n;
insert into instances (project_id, id, position, name, state, origin, server_id, connection_id, remote)
select 'p', id, 0, 'x', 'active', 'launched', n, case when n % 2 = 0 then id end, n % 2 = 0 from n;
insert into trusts_to_revoke (id, project_id, connection_id, user_id, trust_expires_at, not_before, trust_id, failures)
select id, 'p', id, 'u', later, later, 't', 1 from n;
insert into stats_hourly (project_id, hour, domain_id, running, total, by_status, source, recheck_at)
select n, date_trunc('hour', now(), 'UTC'), 'd', 0, 0, '{}', 'sampled', later from n;
insert into polls (project_id, since, full_at, read_at) select n, now(), now(), now() from n;
insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end, due_at)
select 'p', id, 'd', 'u', 'x', 'pending', later, later + interval '1 hour', 'stop', later from n;
insert into drains (id, node, status, due_at) select id, n, 'running', later from n;
insert into managed_projects (project_id, domain_id, due_at) select n, 'd', later from n;
insert into connection_requests (id, project_id, requester_project_id, requester_user_id, grantee, why, actions,
    expires_at, until)
select id, 'p', 'q', 'u', 'user', '', '{}', later, later from n;
insert into callbacks (project_id, id, user_id, url, status, secret, not_before)
select 'p', id, 'u', '', case when n % 2 = 0 then 'pending' else 'verified' end, '', case when n % 2 = 0 then later end
from n;
insert into streams (project_id, callback_id, stream, head, tail, next_at) select 'p', id, 's', 0, 1, later from n;
insert into jobs (kind, key, due_at) select 'run-leases', n, later from n;
insert into jobs (kind, key, done_at) select 'collect-stats', n, now() from n;
insert into jobs (kind, key, due_at) select kind, key, now() + interval '30 seconds'
from (values ('poll-instances', 'poll'), ('run-leases', 'pool'), ('run-connections', 'remote')) polls (kind, key);
insert into unserved_projects (project_id, domain_id) values ('p', 'd'); -- no instance or order is followed
set session_replication_role = default;
analyze`

// TestLongDueStatements: what runs every second reads only what is due, of tables with 100 000 rows that are due later.
func TestLongDueStatements(t *testing.T) {
	t.Parallel()
	conn := testkit.Connect(t, testkit.Database(t))
	exec(t, conn, laterSQL)
	all := postgres.DueStatements()
	all["the clock"] = postgres.DueStatement{SQL: postgres.ClockSQL(declared()), Args: []any{time.Minute}}
	for name, due := range all {
		if name == "work through connections" { // orders that wait for a claim count as work
			exec(t, conn, "begin; truncate orders, actions, instances cascade")
		}
		pages, plan := pagesRead(t, conn, due)
		exec(t, conn, "rollback")
		if pages > 100 {
			t.Errorf("%s: it reads %d pages:\n%s", name, pages, plan)
		}
	}
}

// pagesRead runs a statement in a transaction that is left open, and returns how many pages it has read.
func pagesRead(t *testing.T, conn *pgx.Conn, due postgres.DueStatement) (pages int, plan []byte) {
	t.Helper()
	exec(t, conn, "begin")
	plan = testkit.Scalar[[]byte](t, conn, "explain (analyze, buffers, timing off, format json) "+due.SQL, due.Args...)
	var explained []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(plan, &explained); err != nil || len(explained) != 1 {
		t.Fatalf("%v: %s", err, plan)
	}
	return explained[0].Plan.Hit + explained[0].Plan.Read, plan
}
