//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	storedLeases = 100_000
	dueLeases    = 1000
	dueRounds    = 3
	dueWorkers   = 8 // leases that a replica works on at a time
	dueConns     = 4 // connections of a replica
)

// Active leases of one instance each, which end in days to come, and whose users are warned an hour before.
const fillActiveSQL = `
with lease as (
    insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, before_end, on_end,
                        start_result, started_at, due_at)
    select 'p' || n % 1000, gen_random_uuid(), 'd', 'u', to_char(n, 'FM000000'), 'active', now() - interval '1 day',
           now() + interval '2 hours' + n * interval '1 minute', '1 hour', 'shelve', 'done', now() - interval '1 day',
           now() + interval '1 hour' + n * interval '1 minute'
    from generate_series(1, $1::int) n
    returning *
), instance as (
    insert into instances (project_id, id, name, server_id, state, raw_status, origin, spec, seq, position, lease_id)
    select project_id, id, name, id::text, 'active', 'ACTIVE', 'connected', '{}', 1, 0, id from lease
)
insert into reservations (project_id, id, lease_id, position, type, status, instance_id)
select project_id, id, id, 0, 'instance', 'active', id from lease`

// TestDueLeases holds an event of run-leases, in a process of its own, that warns the users of 1000 leases against 1000
// fenced updates with the same event, by as many workers and connections, and checks that a tick with nothing due reads
// the index of due leases.
func TestDueLeases(t *testing.T) {
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	exec := func(sql string, args ...any) {
		_, err := conn.Exec(context.Background(), sql, args...)
		must(t, err)
	}
	exec(fillActiveSQL, storedLeases)
	exec("vacuum analyze leases, reservations, instances, events")
	idleTick(t, database, conn)
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "run-leases", "DATABASE_URL": database, "HOST": "127.0.0.1", "EVENT_KEY": testkit.EventKey,
		"OS_AUTH_URL": "http://127.0.0.1:1/v3",
	})
	var ours, peer []float64
	for round := range dueRounds {
		for step := range 2 {
			ids := dueIDs(t, conn)
			if (round+step)%2 == 0 {
				exec(`
update leases set due_at = now(), ends_at = now() + interval '59 minutes' where id = any($1)`, ids)
				ours = append(ours, timed(func() {
					if a := p.Tick(t, "run-leases"); a.Status != http.StatusNoContent {
						t.Fatalf("got %d %s", a.Status, a.Body)
					}
				}))
			} else {
				peer = append(peer, timed(func() { plainUpdates(t, database, ids) }))
			}
			if n := testkit.Scalar[int](t, conn, "select count(*)::int from leases where warned_at is not null and id = any($1)",
				ids); n != dueLeases {
				t.Fatalf("%d of %d leases have warned", n, dueLeases)
			}
		}
	}
	report(result{
		number: "13d", name: fmt.Sprintf("%d of %d leases are due: one event : as many fenced updates", dueLeases,
			storedLeases), ours: showMS(median(ours)), peer: showMS(median(peer)), ratio: median(ours) / median(peer),
		target: atMost(1.5),
	})
}

// dueIDs returns leases that have not warned.
func dueIDs(t *testing.T, conn *pgx.Conn) []uuid.UUID {
	t.Helper()
	return testkit.Scalar[[]uuid.UUID](t, conn, `
select array_agg(id) from (select id from leases where warned_at is null order by ends_at desc limit $1) l`, dueLeases)
}

// plainUpdates writes one row and one event for each lease, under a claim.
func plainUpdates(t *testing.T, database string, ids []uuid.UUID) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(database)
	must(t, err)
	cfg.MaxConns = dueConns
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	must(t, err)
	defer pool.Close()
	queue := make(chan uuid.UUID, len(ids))
	for _, id := range ids {
		queue <- id
	}
	close(queue)
	var all sync.WaitGroup
	for range dueWorkers {
		all.Go(func() {
			for id := range queue {
				tag, err := pool.Exec(context.Background(), `
with after as (
    update leases set warned_at = clock_timestamp(), seq = seq + 1, version = version + 1, claim_id = null
    where id = $1 and project_id = 'p' || name::int % 1000 and claim_id is null
    returning *
)
insert into events (project_id, subject, seq, type, at, data)
select project_id, id::text, seq, 'cloudfn.lease.before_end.v1', clock_timestamp(), jsonb_build_object('lease_id', id)
from after`, id)
				if err != nil || tag.RowsAffected() != 1 {
					t.Errorf("%s: %v %v", id, tag, err)
				}
			}
		})
	}
	all.Wait()
}

// idleTick reports the time of the statement that a tick runs when no lease is due soon.
func idleTick(t *testing.T, database string, conn *pgx.Conn) {
	t.Helper()
	query := &lastQuery{}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, query)
	must(t, err)
	defer db.Close()
	next, err := postgres.Leases{DB: db}.Queue().NextDue(context.Background(), 70*time.Second, nil)
	if must(t, err); next != nil {
		t.Fatalf("a lease is due in %s", *next)
	}
	var times []float64
	for range 15 {
		rows, err := conn.Query(context.Background(), "explain (analyze, timing off) "+query.sql, query.args...)
		must(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		plan := strings.Join(lines, "\n")
		if !strings.Contains(plan, "Index Cond: (due_at <= ") {
			t.Fatalf("the plan is\n%s", plan)
		}
		var took float64
		_, err = fmt.Sscanf(lines[len(lines)-1], "Execution Time: %f ms", &took)
		must(t, err)
		times = append(times, took)
	}
	const limit = 0.05 // two looks into the index: for what is due, and for claims that end
	report(result{
		number: "13e", name: fmt.Sprintf("none of %d leases is due: the one statement of a tick : limit", storedLeases),
		ours: showMS(median(times)), peer: showMS(limit), ratio: median(times) / limit, target: atMost(1),
	})
}

// TestLeaseStart reports how long after its start a lease of a shelved server is active, on the real sandbox, with the
// daemon's own ticks and wakes alone.
func TestLeaseStart(t *testing.T) {
	p, database := testkit.NewProject(t), testkit.Database(t)
	conn, s := testkit.Connect(t, database), testkit.Sandbox(t)
	daemon := testkit.Spawn(t, testkit.Env(t, database, map[string]string{
		"ALLOWED_PROJECTS": p.ID, "STATS_BACKFILL": "1h",
	})).As(p.Token(t))
	const leased = 3
	made := daemon.Post(t, "/v1/launch", fmt.Sprintf(`{"name": "leased", "flavor": %q, "image": %q, "networks": [%q],
		"count": %d}`, s.Flavor, s.Image, s.Network, leased))
	var order struct{ Instances []struct{ ID string } }
	made.JSON(t, &order)
	await := func(what, sql string) {
		testkit.Eventually(t, 4*time.Minute, what, func() bool {
			time.Sleep(time.Second)
			return testkit.Scalar[int](t, conn, sql) == leased
		})
	}
	await("the servers are active", "select count(*)::int from instances where state = 'active'")
	start := time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
	for _, i := range order.Instances {
		a := daemon.Post(t, "/v1/leases", fmt.Sprintf(`{"name": "leased", "start": %q, "duration": "PT1H",
			"reservations": [{"type": "instance", "instance_id": %q}]}`, start, i.ID))
		if a.Status != http.StatusCreated {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
	}
	await("the leases are active", "select count(*)::int from leases where status = 'active'")
	late := testkit.Scalar[float64](t, conn,
		"select extract(epoch from max(started_at - starts_at))::float8 * 1000 from leases")
	const limit = 5000.0
	report(result{
		number: "13f", name: fmt.Sprintf("%d leases begin on the sandbox: the latest is active after its start : limit",
			leased), ours: showMS(late), peer: showMS(limit), ratio: late / limit, target: atMost(1),
	})
}
