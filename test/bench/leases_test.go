//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	leaseHosts   = 1000
	leasesBefore = 10_000
	leasesMany   = 100_000
	leaseClients = 50
	leasePods    = 3 // each with its own pool, as functions have it
	leaseRounds  = 3
	leaseTime    = 4 * time.Second // of one round
	leaseDays    = 60              // in which clients book

	searches = 15
	// These bound the database's time for a search, in ms.
	searchBlindLimit, searchLimit, searchManyLimit = 50.0, 15.0, 130.0
)

// Leases of two days on each host, every sixth day, or of twelve hours, every twentieth hour; and a trigger by which
// every booking locks one row.
const (
	fillLeasesSQL = `
insert into nodes (name, zone, pool, vcpus, ram_mb, disk_gb)
select 'compute-' || to_char(n, 'FM0000'), 'nova', 'reservable', 32, 131072, 2000 from generate_series(1, $1::int) n`
	fillLeaseSQL = `
with lease as (
    insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end)
    select 'p' || n % 100, gen_random_uuid(), 'd', 'u', to_char(n, 'FM000000'), 'pending',
           now() + (n % $2 * $3 + 1 + n / $2 % 4) * $4::interval,
           now() + (n % $2 * $3 + 1 + n / $2 % 4) * $4::interval + $5::interval, 'shelve'
    from generate_series(0, $1::int - 1) n
    returning *
), reservation as (
    insert into reservations (project_id, id, lease_id, position, type, want)
    select project_id, id, id, 0, 'host', '{"min": 1, "max": 1}' from lease
)
insert into allocations (project_id, reservation_id, node, during)
select project_id, id, 'compute-' || to_char(1 + name::int / $2, 'FM0000'), tstzrange(starts_at, ends_at) from lease`
	analyzeSQL = "vacuum analyze leases, reservations, allocations, nodes"
	oneRowSQL  = `
create table one_row (id int primary key);
insert into one_row values (1);
create function lock_one_row() returns trigger language plpgsql as $$
begin perform from one_row for update; return null; end $$;
create trigger one_row before insert on leases for each statement execute function lock_one_row();
alter table leases disable trigger one_row`
)

// lastQuery remembers the last statement of a pool.
type lastQuery struct {
	sql  string
	args []any
}

func (q *lastQuery) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	q.sql, q.args = d.SQL, d.Args
	return ctx
}

func (q *lastQuery) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestLeases holds bookings of 50 clients against the same bookings under a lock on one row, and the database's time
// for a search of free hosts against its limit.
func TestLeases(t *testing.T) {
	db := newRig(t)
	db.run(fillLeasesSQL, leaseHosts)
	db.run(fillLeaseSQL, leasesBefore, leasesBefore/leaseHosts, 6, "1 day", "2 days")
	db.run(oneRowSQL)
	searchTime(db, search{when: "without statistics, ", leases: leasesBefore, length: "P2D", limit: searchBlindLimit})
	db.run(analyzeSQL)
	searchTime(db, search{leases: leasesBefore, length: "P2D", limit: searchLimit})
	var ours, peer bookings
	alternate(leaseRounds, func() { ours.book(db) }, func() {
		db.run("alter table leases enable trigger one_row")
		peer.book(db)
		db.run("alter table leases disable trigger one_row")
	})
	if n := db.count(`select count(*)::int from allocations a join allocations b
on a.node = b.node and a.during && b.during and a.reservation_id < b.reservation_id`); n != 0 {
		t.Errorf("%d hosts are booked twice", n)
	}
	name := fmt.Sprintf("book a host: %d clients, %d pods, %d hosts, %d leases before, ", leaseClients, leasePods,
		leaseHosts, leasesBefore)
	compare("13a", name+"granted a second : under a lock on one row", median(ours.rates), median(peer.rates), showCount,
		atLeast(1.5))
	if ours.wrong > 0 {
		t.Errorf("%d were refused while hosts were free", ours.wrong)
	}
	compare("13b", name+"99th percentile : under a lock on one row", percentile(ours.took, 99),
		percentile(peer.took, 99), showMS, atMost(1))
}

// TestManyLeases is the database's time for a search among many leases.
func TestManyLeases(t *testing.T) {
	db := newRig(t)
	db.run(fillLeasesSQL, leaseHosts)
	db.run(fillLeaseSQL, leasesMany, leasesMany/leaseHosts, 20, "1 hour", "12 hours")
	db.run(analyzeSQL)
	searchTime(db, search{leases: leasesMany, length: "PT8H", limit: searchManyLimit})
}

// search is a search for free hosts: how many leases there are, for how long, and its limit in ms.
type search struct {
	when, length string
	leases       int
	limit        float64
}

// searchTime reports the database's time for the search of three hosts with 32 cores, in the coming 90 days.
func searchTime(db rig, s search) {
	t, query := db.t, &lastQuery{}
	store := postgres.Leases{DB: db.open(1, query)}
	var times []float64
	length, err := domain.ParsePeriod(s.length)
	must(t, err)
	for range searches {
		slots, err := store.Availability(context.Background(), domain.FreeQuery{
			Request: domain.HostRequest{VCPUs: 32}, Hosts: 3, Length: length, From: time.Now(),
			Until: time.Now().AddDate(0, 0, 90), Limit: 20,
		})
		must(t, err)
		if len(slots) == 0 {
			t.Fatal("no hosts are free")
		}
		plan := testkit.Scalar[[]byte](t, db.Conn,
			"explain (analyze, timing off, format json) "+query.sql, query.args...)
		var explained []struct {
			Planning  float64 `json:"Planning Time"`
			Execution float64 `json:"Execution Time"`
		}
		must(t, json.Unmarshal(plan, &explained))
		times = append(times, explained[0].Planning+explained[0].Execution)
	}
	name := fmt.Sprintf("free hosts over %d hosts and %d leases, %sthe database's time : limit", leaseHosts, s.leases,
		s.when)
	compare("13c", name, median(times), s.limit, showMS, atMost(1))
}

// bookings are what clients were granted.
type bookings struct {
	rates []float64 // a second, of each round
	took  []float64 // ms, of each granted one
	wrong int       // refused, while half of the hosts are free at any time
}

// book has all clients book one host after another for the time of a round.
func (b *bookings) book(db rig) {
	var stores []postgres.Leases
	for range leasePods {
		pod := db.open(4, nil)
		defer pod.Close()
		stores = append(stores, postgres.Leases{DB: pod})
	}
	began, granted := time.Now(), 0
	var mu sync.Mutex
	var all sync.WaitGroup
	for client := range leaseClients {
		all.Go(func() {
			for time.Since(began) < leaseTime {
				lease := randomLease(client)
				from := time.Now()
				_, err := stores[client%leasePods].Create(context.Background(), lease)
				took := ms(time.Since(from))
				mu.Lock()
				if err == nil {
					granted++
					b.took = append(b.took, took)
				} else if _, refused := errors.AsType[*domain.FreeError](err); refused {
					b.wrong++
				} else {
					db.t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	b.rates = append(b.rates, float64(granted)/time.Since(began).Seconds())
}

// randomLease is a lease of one host for some hours at any time.
func randomLease(client int) domain.NewLease {
	start := time.Now().Add(time.Duration(1+rand.IntN(leaseDays*24)) * time.Hour)
	return domain.NewLease{Lease: domain.Lease{
		ID: uuid.Must(uuid.NewV7()), ProjectID: fmt.Sprintf("client%d", client), DomainID: "d", UserID: "u",
		Name: "bench", StartsAt: start, EndsAt: start.Add(time.Duration(1+rand.IntN(12)) * time.Hour),
		OnEnd: domain.OnEndShelve,
		Reservations: []domain.Reservation{{
			ID: uuid.New(), Type: domain.HostReservation, Request: &domain.HostRequest{Min: 1, Max: 1, VCPUs: 16},
		}},
	}}
}

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
	db := newRig(t)
	db.run(fillActiveSQL, storedLeases)
	db.run("vacuum analyze leases, reservations, instances, events")
	idleTick(db)
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "run-leases", "DATABASE_URL": db.url, "HOST": "127.0.0.1", "EVENT_KEY": testkit.EventKey,
		"OS_AUTH_URL": "http://127.0.0.1:1/v3",
	})
	haveWarned := func(ids []uuid.UUID) {
		n := db.count("select count(*)::int from leases where warned_at is not null and id = any($1)", ids)
		if n != dueLeases {
			t.Fatalf("%d of %d leases have warned", n, dueLeases)
		}
	}
	var ours, peer []float64
	alternate(dueRounds, func() {
		ids := dueIDs(db)
		db.run("update leases set due_at = now(), ends_at = now() + interval '59 minutes' where id = any($1)", ids)
		ours = append(ours, timed(func() { tick(t, p, "run-leases") }))
		haveWarned(ids)
	}, func() {
		ids := dueIDs(db)
		peer = append(peer, timed(func() { plainUpdates(db, ids) }))
		haveWarned(ids)
	})
	compare("13d", fmt.Sprintf("%d of %d leases are due: one event : as many fenced updates", dueLeases, storedLeases),
		median(ours), median(peer), showMS, atMost(1.5))
}

// dueIDs returns leases that have not warned.
func dueIDs(db rig) []uuid.UUID {
	return testkit.Scalar[[]uuid.UUID](db.t, db.Conn, `
select array_agg(id) from (select id from leases where warned_at is null order by ends_at desc limit $1) l`, dueLeases)
}

// plainUpdates writes one row and one event for each lease, under a claim.
func plainUpdates(db rig, ids []uuid.UUID) {
	pool := db.pool(dueConns)
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
					db.t.Errorf("%s: %v %v", id, tag, err)
				}
			}
		})
	}
	all.Wait()
}

// idleTick reports the time of the statement that a tick runs when no lease is due soon.
func idleTick(db rig) {
	t, query := db.t, &lastQuery{}
	next, err := postgres.Leases{DB: db.open(1, query)}.Queue().NextDue(context.Background(), 70*time.Second, nil)
	if must(t, err); next != nil {
		t.Fatalf("a lease is due in %s", *next)
	}
	var times []float64
	for range 15 {
		rows, err := db.Query(context.Background(), "explain (analyze, timing off) "+query.sql, query.args...)
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
	compare("13e", fmt.Sprintf("none of %d leases is due: the one statement of a tick : limit", storedLeases),
		median(times), limit, showMS, atMost(1))
}

// TestLeaseStart reports how long after its start a lease of a shelved server is active, on the real sandbox, with the
// daemon's own ticks and wakes alone.
func TestLeaseStart(t *testing.T) {
	p, db, s := testkit.NewProject(t), newRig(t), testkit.Sandbox(t)
	daemon := testkit.Spawn(t, testkit.Env(t, db.url, map[string]string{
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
			return db.count(sql) == leased
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
	late := testkit.Scalar[float64](t, db.Conn,
		"select extract(epoch from max(started_at - starts_at))::float8 * 1000 from leases")
	const limit = 5000.0
	compare("13f", fmt.Sprintf("%d leases begin on the sandbox: the latest is active after its start : limit", leased),
		late, limit, showMS, atMost(1))
}
