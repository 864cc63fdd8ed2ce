package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// declared is what the functions declare that is due. test/contract holds it to the declarations themselves.
func declared() []due.Declared {
	return []due.Declared{
		{Function: "collect-stats", SQL: postgres.DueStats()},
		{Function: "deliver-events", SQL: append(postgres.DueJobs("deliver-events"), postgres.DueDeliveries()...)},
		{
			Function: "poll-instances",
			SQL:      append(postgres.DueJobs("poll-instances"), postgres.DueFollowed(), postgres.DueReleases()),
		},
		{Function: "reconcile-managed", SQL: []string{postgres.DueManaged()}},
		{Function: "run-connections", SQL: append(postgres.DueJobs("run-connections"), postgres.DueConnections()...)},
		{
			Function: "run-leases",
			SQL:      append(postgres.DueJobs("run-leases"), postgres.DueLeases(), postgres.DuePool()),
		},
		{Function: "watch-nodes", SQL: append(postgres.DueJobs("watch-nodes"), postgres.DueDrains())},
	}
}

// quietSQL registers the functions' jobs, and has counted the hour: nothing is due.
const quietSQL = `
insert into jobs (kind, key, due_at, done_at)
select kind, 'retire', now() + interval '1 hour', null::timestamptz
from unnest(array['deliver-events', 'poll-instances', 'run-connections', 'run-leases', 'watch-nodes']) kind
union all select 'poll-instances', 'poll', 'infinity', null
union all select 'run-leases', 'pool', 'infinity', null
union all select 'run-connections', 'remote', 'infinity', null
union all select 'collect-stats', to_char(hour at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), null, now()
from generate_series(date_trunc('hour', now(), 'UTC'), now() + interval '2 hours', interval '1 hour') hour`

// waiting returns what the clock reads, such as "run-leases in 0 s".
func waiting(t *testing.T, clock postgres.Clock) (all []string) {
	t.Helper()
	found := must(clock.NextDue(t.Context(), time.Minute))(t)
	for _, w := range found {
		all = append(all, w.Function+" in "+max(w.In, 0).Round(10*time.Second).String())
	}
	return all
}

// TestClock: each row that is due, or will be within a minute, has just its function woken. What is claimed, later,
// over, switched off or not served has none.
func TestClock(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	clock, conn := postgres.NewClock(open(t, url), declared()), testkit.Connect(t, url)
	if got := waiting(t, clock); len(got) != 5 && len(got) != 6 { // the sixth is the hour, unless it has just begun
		t.Errorf("before any function has registered its jobs, due are %v", got)
	}
	exec(t, conn, quietSQL)
	if got := waiting(t, clock); len(got) != 0 {
		t.Errorf("when nothing is due, due are %v", got)
	}
	for name, tc := range map[string]struct {
		sql  string
		want []string
	}{
		"a lease":                {lease("'pending', now() - interval '1 hour'"), []string{"run-leases in 0s"}},
		"a lease soon":           {lease("'pending', now() + interval '40 seconds'"), []string{"run-leases in 40s"}},
		"a lease later":          {lease("'pending', now() + interval '2 minutes'"), nil},
		"a lease that has ended": {lease("'ended', null"), nil},
		"a claimed lease": {
			lease("'pending', now()") + "; update leases set claimed_until = now() + interval '5 minutes'",
			nil,
		},
		"a lease whose claim ends": {
			lease("'pending', now()") + "; update leases set claimed_until = now() + interval '20 seconds'",
			[]string{"run-leases in 20s"},
		},
		"a lease of a project that is not served": {
			lease("'pending', now()") + "; insert into unserved_projects (project_id, domain_id) values ('p', '')", nil,
		},
		"a drain": {
			"insert into drains (id, node, status, due_at) values (gen_random_uuid(), 'n', 'running', now())",
			[]string{"watch-nodes in 0s"},
		},
		"a managed project": {
			"insert into managed_projects (project_id, domain_id, due_at) values ('p', 'd', now() + '30 seconds')",
			[]string{"reconcile-managed in 30s"},
		},
		"a periodic job": {
			"update jobs set due_at = now() + interval '10 seconds' where kind = 'watch-nodes'",
			[]string{"watch-nodes in 10s"},
		},
		"a claimed job": {
			"update jobs set due_at = now(), claimed_until = now() + interval '1 hour' where kind = 'watch-nodes'", nil,
		},
		"an instance": {instanceRow("false, null"), []string{"poll-instances in 0s"}},
		"an instance, and polls go on": {
			instanceRow("false, null") +
				"; update jobs set due_at = now() + interval '30 seconds' where key = 'poll'",
			[]string{"poll-instances in 30s"},
		},
		"an instance, and no job": {
			instanceRow("false, null") + "; delete from jobs where kind = 'poll-instances'",
			[]string{"poll-instances in 0s"},
		},
		"a floating IP of a deleted server": {
			instanceRow("false, null") +
				"; update instances set state = 'deleted', floating_ip_release_at = now() + interval '20 seconds'",
			[]string{"poll-instances in 20s"},
		},
		"a floating IP that its owner keeps": {
			instanceRow("false, null") + "; update instances set state = 'deleted', floating_ip_release_at = now(), " +
				"disconnected_at = now()", nil,
		},
		"a server in another cloud": {
			connection("'active', null") + ";" + instanceRow("true, 'c0000000-0000-0000-0000-000000000000'"),
			[]string{"run-connections in 0s"},
		},
		"an order without a connection": {order("null, null"), []string{"poll-instances in 0s"}},
		"a host of the pool": {
			"insert into nodes (name, pool) values ('n', 'reservable')",
			[]string{"run-leases in 0s"},
		},
		"a host that is only watched": {"insert into nodes (name, pool) values ('n', '')", nil},
		"an order": {
			connection("'active', null") + ";" + order("'c0000000-0000-0000-0000-000000000000', null"),
			[]string{"run-connections in 0s"},
		},
		"a claimed order": {
			connection("'active', null") + ";" +
				order("'c0000000-0000-0000-0000-000000000000', now() + interval '1 hour'"),
			nil,
		},
		"an order of a cloud that rests": {
			connection("'active', now() + interval '20 seconds'") + ";" +
				order("'c0000000-0000-0000-0000-000000000000', null"),
			[]string{"run-connections in 20s"},
		},
		"an action": {
			connection("'active', null") + `;
insert into actions (project_id, id, connection_id, instance_id, user_id, verb) values (
    'p', gen_random_uuid(), 'c0000000-0000-0000-0000-000000000000', gen_random_uuid(), 'u', 'stop')`,
			[]string{"run-connections in 0s"},
		},
		"a connection": {connection("'active', null"), nil},
		"a connection that ends": {
			connection("'active', null") + "; update connections set expires_at = now() + interval '40 seconds'",
			[]string{"run-connections in 40s"},
		},
		"an idle connection": {
			connection("'active', null") +
				"; update connections set idle_timeout = '20 seconds', created_at = now()",
			[]string{"run-connections in 20s"},
		},
		"a check": {
			connection("'active', null") +
				"; update connections set next_check_at = now() + interval '10 seconds'",
			[]string{"run-connections in 10s"},
		},
		"a check that is claimed": {
			connection("'active', null") +
				"; update connections set next_check_at = now(), check_until = now() + interval '1 hour'",
			nil,
		},
		"a trust of an ended one": {
			connection("'expired', now() + interval '30 seconds'"),
			[]string{"run-connections in 30s"},
		},
		"a trust that is revoked": {connection("'expired', null") + "; update connections set revoked = true", nil},
		"an old trust": {
			oldTrustRow("now() + interval '20 seconds', null"),
			[]string{"run-connections in 20s"},
		},
		"an old trust of no one":    {oldTrustRow("now() + interval '1 hour', 't'"), []string{"run-connections in 0s"}},
		"a trust that is announced": {oldTrustRow("now() + interval '1 hour', null"), nil},
		"a request": {
			`insert into connection_requests (id, project_id, requester_project_id, requester_user_id, grantee, why,
    actions, expires_at, until)
values (gen_random_uuid(), 'p', 'q', 'u', 'user', '', '{}', now() + interval '50 seconds', now())`,
			[]string{"run-connections in 50s"},
		},
		"a delivery": {stream("'verified', null, now()"), []string{"deliver-events in 0s"}},
		"a delivery that pauses": {
			stream("'verified', null, now() + interval '20 seconds'"),
			[]string{"deliver-events in 20s"},
		},
		"a callback that pauses": {
			stream("'verified', now() + interval '30 seconds', now()"),
			[]string{"deliver-events in 30s"},
		},
		"a delivery to a suspended one": {stream("'suspended', null, now()"), nil},
		"a delivery to a gone one":      {stream("'gone', null, now()"), []string{"deliver-events in 0s"}},
		"a handshake": {
			stream("'pending', null, now() + interval '1 hour'"),
			[]string{"deliver-events in 0s"},
		},
		"a handshake after a pause": {
			stream("'pending', now() + interval '40 seconds', now() + interval '1 hour'"),
			[]string{"deliver-events in 40s"},
		},
		"two": {
			lease("'pending', now()") + ";" + stream("'verified', null, now() + interval '20 seconds'"),
			[]string{"run-leases in 0s", "deliver-events in 20s"},
		},
		"a recheck of undecided servers": {
			"insert into jobs (kind, key, due_at) values ('collect-stats', 'recheck', now() + interval '10 seconds')",
			[]string{"collect-stats in 10s"},
		},
		"a recheck that has nothing to do": {
			"insert into jobs (kind, key, due_at) values ('collect-stats', 'recheck', 'infinity')",
			nil,
		},
	} {
		func() {
			tx := must(conn.Begin(t.Context()))(t)
			defer func() { _ = tx.Rollback(t.Context()) }()
			if _, err := tx.Exec(t.Context(), "set local session_replication_role = replica;"+tc.sql); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := waitingIn(t, tx); !slices.Equal(got, tc.want) {
				t.Errorf("%s: due are %v, want %v", name, got, tc.want)
			}
		}()
	}
}

// waitingIn is waiting within a transaction.
func waitingIn(t *testing.T, tx pgx.Tx) (all []string) {
	t.Helper()
	rows, _ := tx.Query(t.Context(), postgres.ClockSQL(declared()), time.Minute)
	found := must(pgx.CollectRows(rows, pgx.RowToStructByName[due.Waiting]))(t)
	for _, w := range found {
		all = append(all, w.Function+" in "+max(w.In, 0).Round(10*time.Second).String())
	}
	return all
}

// TestClockHidesNothing: what is due since ever hides neither what became due just now nor what is due later, of
// another query. A function that has only never registered its jobs says so.
func TestClockHidesNothing(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	clock, conn := postgres.NewClock(open(t, url), declared()), testkit.Connect(t, url)
	exec(t, conn, quietSQL)
	exec(t, conn, "set session_replication_role = replica;"+
		"delete from jobs where kind in ('run-leases', 'watch-nodes');"+
		"insert into drains (id, node, status, due_at) values (gen_random_uuid(), 'n', 'running', now());"+
		connection("'active', null")+";"+order("'c0000000-0000-0000-0000-000000000000', null")+
		"; update jobs set due_at = now() - interval '20 seconds' where kind = 'run-connections' and key = 'retire';"+
		"update connections set expires_at = now() + interval '40 seconds';"+
		"insert into wake_failures (function, failing_since, failed_at)"+
		"values ('poll-instances', now() - interval '1 hour', now() - interval '3 minutes'),"+
		"('run-leases', now() - interval '1 hour', now() - interval '3 minutes'),"+ // it is due
		"('collect-stats', now() - interval '1 hour', now() - interval '1 minute')")
	found := must(clock.NextDue(t.Context(), time.Minute))(t)
	text := func(d time.Duration) string { return d.Round(10 * time.Second).String() }
	var got []string
	for _, w := range found {
		later := "nothing"
		if w.Later != nil {
			later = text(*w.Later)
		}
		since := "long ago"
		if w.In > -time.Hour {
			since = text(w.In)
		}
		newest := "long ago"
		if w.Newest > -time.Hour {
			newest = text(w.Newest)
		}
		got = append(got, fmt.Sprint(w.Function, " since ", since, ", last ", newest, ", later ", later,
			", only unregistered ", w.IsUnregistered, ", forgotten ", w.IsForgotten))
	}
	slices.Sort(got)
	want := []string{
		"poll-instances since 0s, last 0s, later nothing, only unregistered false, forgotten true",
		"run-connections since long ago, last -20s, later 40s, only unregistered false, forgotten false",
		"run-leases since long ago, last long ago, later nothing, only unregistered true, forgotten false",
		"watch-nodes since long ago, last 0s, later nothing, only unregistered false, forgotten false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The rows of TestClock; each takes the values of the columns that matter.
func lease(statusAndDue string) string {
	return `insert into leases (project_id, id, domain_id, user_id, name, starts_at, ends_at, on_end, status, due_at)
select 'p', gen_random_uuid(), 'd', 'u', 'x', now(), now() + interval '1 day', 'stop', ` + statusAndDue
}

func instanceRow(remoteAndConnection string) string {
	return `insert into instances (project_id, id, position, name, state, origin, server_id, remote, connection_id)
select 'p', gen_random_uuid(), 0, 'x', 'active', 'launched', 's', ` + remoteAndConnection
}

func connection(statusAndPause string) string {
	return `insert into connections (project_id, id, domain_id, user_id, kind, delegation_id, acts_as, actions,
    usable_by, expires_at, next_check_at, status, not_before)
select 'p', 'c0000000-0000-0000-0000-000000000000', 'd', 'u', 'trust', 't', '{}', '{}', '{}', now() + interval '1 day',
    now() + interval '1 hour', ` + statusAndPause
}

func order(connectionAndClaim string) string {
	return `insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, connection_id,
    claimed_until)
select 'p', gen_random_uuid(), 'd', 'u', '', '{}', 'running', ` + connectionAndClaim
}

func oldTrustRow(pauseAndTrust string) string {
	return `insert into trusts_to_revoke (id, project_id, connection_id, user_id, trust_expires_at, not_before,
    trust_id)
select gen_random_uuid(), 'p', gen_random_uuid(), 'u', now() + interval '1 day', ` + pauseAndTrust
}

func stream(statusPauseAndNext string) string {
	return `with c (status, not_before, next_at) as (select ` + statusPauseAndNext + `), callback as (
    insert into callbacks (project_id, id, user_id, url, secret, status, not_before)
    select 'p', 'ca000000-0000-0000-0000-000000000000', 'u', '', '', status, not_before::timestamptz from c
)
insert into streams (project_id, callback_id, stream, head, tail, next_at)
select 'p', 'ca000000-0000-0000-0000-000000000000', 's', 0, 1, next_at from c`
}

// TestClockCountsHours: an hour that is not counted a minute after it began has collect-stats woken, unless another
// replica counts it. The tick at the full hour is its own.
func TestClockCountsHours(t *testing.T) {
	t.Parallel()
	hour := time.Now().UTC().Truncate(time.Hour).Add(2 * time.Hour)
	for name, tc := range map[string]struct {
		after time.Duration // the full hour
		sql   string
		want  []string
	}{
		"at the full hour":    {0, "", []string{"collect-stats in 1m0s"}},
		"soon":                {30 * time.Second, "", []string{"collect-stats in 30s"}},
		"a minute later":      {time.Minute + time.Second, "", []string{"collect-stats in 0s"}},
		"half an hour later":  {30 * time.Minute, "", []string{"collect-stats in 0s"}},
		"it is done":          {30 * time.Minute, "done_at", nil},
		"another counts it":   {30 * time.Minute, "claimed_until", nil},
		"it failed and rests": {30 * time.Minute, "claimed_until", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testkit.Database(t)
			conn := testkit.Connect(t, url)
			exec(t, conn, quietSQL)
			exec(t, conn, "delete from jobs where kind = 'collect-stats'; update jobs set due_at = 'infinity'")
			if tc.sql != "" {
				must(conn.Exec(t.Context(), "insert into jobs (kind, key, "+tc.sql+
					") values ('collect-stats', $1, $2)", hour.Format(time.RFC3339), hour.Add(time.Hour)))(t)
			}
			testkit.SetClock(t, url, hour.Add(tc.after))
			got := waiting(t, postgres.NewClock(open(t, url), declared()))
			if !slices.Equal(got, tc.want) {
				t.Errorf("due are %v, want %v", got, tc.want)
			}
		})
	}
}

// TestClockReadsIndexes: an index answers each part of the clock's statement, so that it costs the same however many
// rows are due later. TestLongDueStatements counts the pages.
func TestClockReadsIndexes(t *testing.T) {
	t.Parallel()
	conn := testkit.Connect(t, testkit.Database(t))
	exec(t, conn, "set enable_seqscan = off")
	for _, f := range declared() {
		for _, sql := range f.SQL {
			rows, _ := conn.Query(t.Context(), "explain (costs off) "+strings.ReplaceAll(sql, "$1", "'1 minute'"))
			plan := must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
			if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan") {
				t.Errorf("%s: %s\nreads a table:\n%s", f.Function, sql, text)
			}
		}
	}
}
