//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
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
	leaseClients = 50
	leasePods    = 3 // each with its own pool, as functions have it
	leaseRounds  = 3
	leaseTime    = 4 * time.Second // of one round
	leaseDays    = 60              // in which clients book
)

// Ten leases of two days on each host, every sixth day; and a trigger by which every booking locks one row.
const (
	fillLeasesSQL = `
insert into nodes (name, zone, pool, vcpus, ram_mb, disk_gb)
select 'compute-' || to_char(n, 'FM0000'), 'nova', 'reservable', 32, 131072, 2000 from generate_series(1, $1::int) n`
	fillLeaseSQL = `
with lease as (
    insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end)
    select 'p' || n % 100, gen_random_uuid(), 'd', 'u', to_char(n, 'FM00000'), 'pending',
           now() + (n % 10 * 6 + 1 + n / 10 % 4) * interval '1 day',
           now() + (n % 10 * 6 + 3 + n / 10 % 4) * interval '1 day', 'shelve'
    from generate_series(0, $1::int - 1) n
    returning *
), reservation as (
    insert into reservations (project_id, id, lease_id, position, type, want)
    select project_id, id, id, 0, 'host', '{"min": 1, "max": 1}' from lease
)
insert into allocations (project_id, reservation_id, node, during)
select project_id, id, 'compute-' || to_char(1 + name::int / 10, 'FM0000'), tstzrange(starts_at, ends_at) from lease`
	oneRowSQL = `
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
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	exec := func(sql string, args ...any) {
		_, err := conn.Exec(context.Background(), sql, args...)
		must(t, err)
	}
	exec(fillLeasesSQL, leaseHosts)
	exec(fillLeaseSQL, leasesBefore)
	exec(oneRowSQL)
	searchTime(t, database, conn, "without statistics, ")
	exec("vacuum analyze leases, reservations, allocations, nodes")
	searchTime(t, database, conn, "")
	var ours, peer bookings
	for round := range leaseRounds {
		for step := range 2 {
			if (round+step)%2 == 0 {
				ours.book(t, database)
				continue
			}
			exec("alter table leases enable trigger one_row")
			peer.book(t, database)
			exec("alter table leases disable trigger one_row")
		}
	}
	if n := testkit.Scalar[int](t, conn, `select count(*)::int from allocations a join allocations b
on a.node = b.node and a.during && b.during and a.reservation_id < b.reservation_id`); n != 0 {
		t.Errorf("%d hosts are booked twice", n)
	}
	name := fmt.Sprintf("book a host: %d clients, %d pods, %d hosts, %d leases before, ", leaseClients, leasePods,
		leaseHosts, leasesBefore)
	rate := func(b bookings) float64 { return median(b.rates) }
	report(result{
		number: "13a", name: name + "granted a second : under a lock on one row", ours: fmt.Sprintf("%.0f", rate(ours)),
		peer: fmt.Sprintf("%.0f", rate(peer)), ratio: rate(ours) / rate(peer), target: atLeast(1),
	})
	p99 := func(b bookings) float64 { return percentile(b.took, 99) }
	report(result{
		number: "13b", name: name + "99th percentile : under a lock on one row", ours: showMS(p99(ours)),
		peer: showMS(p99(peer)), ratio: p99(ours) / p99(peer), target: atMost(1),
	})
}

// searchTime reports the database's time for the search of three hosts with 32 cores for two days, in the coming 90.
func searchTime(t *testing.T, database string, conn *pgx.Conn, when string) {
	query := &lastQuery{}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, query)
	must(t, err)
	defer db.Close()
	var times []float64
	length, err := domain.ParsePeriod("P2D")
	must(t, err)
	for range 15 {
		slots, err := postgres.Leases{DB: db}.Availability(context.Background(), domain.FreeQuery{
			Want: domain.HostWant{VCPUs: 32}, Hosts: 3, Length: length, From: time.Now(),
			Until: time.Now().AddDate(0, 0, 90), Limit: 20,
		})
		must(t, err)
		if len(slots) == 0 {
			t.Fatal("no hosts are free")
		}
		plan := testkit.Scalar[[]byte](t, conn, "explain (analyze, timing off, format json) "+query.sql, query.args...)
		var explained []struct {
			Planning  float64 `json:"Planning Time"`
			Execution float64 `json:"Execution Time"`
		}
		must(t, json.Unmarshal(plan, &explained))
		times = append(times, explained[0].Planning+explained[0].Execution)
	}
	const limit = 50.0
	report(result{
		number: "13c", name: fmt.Sprintf("free hosts over %d hosts and %d leases, %sthe database's time : limit",
			leaseHosts, leasesBefore, when),
		ours: showMS(median(times)), peer: showMS(limit), ratio: median(times) / limit, target: atMost(1),
	})
}

// bookings are what clients were granted.
type bookings struct {
	rates []float64 // a second, of each round
	took  []float64 // ms, of each granted one
}

// book has all clients book one host after another for the time of a round.
func (b *bookings) book(t *testing.T, database string) {
	var stores []postgres.Leases
	for range leasePods {
		db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 4}, nil)
		must(t, err)
		defer db.Close()
		stores = append(stores, postgres.Leases{DB: db})
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
				took := float64(time.Since(from).Microseconds()) / 1000
				mu.Lock()
				if err == nil {
					granted++
					b.took = append(b.took, took)
				} else if _, refused := errors.AsType[*domain.FreeError](err); !refused {
					t.Error(err)
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
			ID: uuid.New(), Type: domain.HostReservation, Want: &domain.HostWant{Min: 1, Max: 1, VCPUs: 16},
		}},
	}}
}
