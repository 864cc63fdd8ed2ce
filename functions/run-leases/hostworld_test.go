package runleases

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// hostWorld is a pool of the hosts h1 to h3 in a fake cloud, and a real Postgres.
type hostWorld struct {
	db    *postgres.DB
	rows  *pgxpool.Pool
	cloud *fakeCloud
	real  leases.Cloud // instead of cloud; nil = none
	dies  *crasher     // at its next call, or never

	inventory *leases.Inventory // of all passes; nil = each reads its own
	after     time.Duration     // how much later than now the next pass is

	unproven bool      // the isolation
	testedAt time.Time // when that was found
}

func newHostWorld(t *testing.T) *hostWorld {
	t.Helper()
	database := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	w := &hostWorld{
		db: db, rows: testkit.Pool(t, database), cloud: newFakeCloud("h1", "h2", "h3"), dies: &crasher{},
	}
	w.exec(t, `
insert into nodes (name, provider_id, zone, pool, vcpus, ram_mb, disk_gb)
select 'h' || n, 'h' || n, 'nova', 'joining', 8, 8192, 100 from generate_series(1, 3) n`)
	w.move(t)
	return w
}

func (w *hostWorld) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := w.rows.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// move has the pool's hosts join and leave.
func (w *hostWorld) move(t *testing.T) {
	t.Helper()
	if _, err := (leases.Pool{Nodes: postgres.Nodes{DB: w.db}, Cloud: w.cloud}).Move(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// grow makes the pool n hosts large.
func (w *hostWorld) grow(t *testing.T, n int) {
	t.Helper()
	for n := range n {
		w.cloud.provided[fmt.Sprintf("h%d", n+1)] = map[string]bool{}
	}
	w.exec(t, `
insert into nodes (name, provider_id, zone, pool, vcpus, ram_mb, disk_gb)
select 'h' || n, 'h' || n, 'nova', 'joining', 8, 8192, 100 from generate_series(4, $1) n`, n)
	w.move(t)
}

// cloudCalls takes the calls to the cloud since the last time.
func (w *hostWorld) cloudCalls() []string {
	calls := slices.DeleteFunc(w.dies.names, func(name string) bool { return strings.ToLower(name[:1]) == name[:1] })
	w.dies.names = nil
	return calls
}

// lease makes a lease of one host with one flavor, and returns its reservation.
func (w *hostWorld) lease(t *testing.T, change func(*domain.Lease)) domain.Reservation {
	t.Helper()
	id := uuid.New()
	lease := domain.Lease{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p", DomainID: "d", UserID: "u", Name: "workshop",
		StartsAt: time.Now(), EndsAt: time.Now().Add(time.Hour), OnEnd: domain.OnEndDelete,
		Reservations: []domain.Reservation{{
			ID: id, Type: domain.HostReservation, Request: &domain.HostRequest{Min: 1, Max: 1},
			Flavors: []domain.LeasedFlavor{{ID: "f-" + id.String(), Name: "tiny-" + id.String()[:8], BaseID: "base"}},
		}},
	}
	if change != nil {
		change(&lease)
	}
	stored, err := postgres.Leases{DB: w.db}.Create(t.Context(), domain.NewLease{Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	return stored.Reservations[0]
}

// pass is a visit of all leases by a replica that dies where w.dies says.
func (w *hostWorld) pass(t *testing.T) (died bool) {
	t.Helper()
	w.exec(t, "update leases set due_at = now() where due_at is not null")
	if died = w.replica().passAt(t, w.after); died {
		w.exec(t, "update leases set claimed_until = now()") // as time ends the claim
	}
	return died
}

// replica is a run-leases that dies where w.dies says.
func (w *hostWorld) replica() *service {
	s := &service{db: w.db, leases: postgres.Leases{DB: w.db}}
	s.engine = leases.Engine{
		Store: crashingStore{s.leases, w.dies}, Actions: postgres.Actions{DB: w.db},
		Instances: postgres.Instances{DB: w.db}, Connections: postgres.Delegations{DB: w.db},
		Nodes: postgres.Nodes{DB: w.db}, Cloud: func(context.Context) (leases.Cloud, error) { return w.cloud, nil },
		Wake: func(...string) {}, RetryFor: time.Minute, EndFor: time.Hour, ClaimFor: time.Minute,
		HealAfter: 3 * time.Minute, Inventory: w.inventory,
	}
	s.engine.IsIsolated = func(_ context.Context, then time.Time) (bool, error) {
		return !w.unproven && w.testedAt.Before(then), nil
	}
	w.cloud.called = w.dies.wrote
	if w.real != nil {
		s.engine.Cloud = func(context.Context) (leases.Cloud, error) { return crashingCloud{w.real, w.dies}, nil }
	}
	return s
}

// becomes works on the lease until it has a status, and returns after how many passes.
func (w *hostWorld) becomes(t *testing.T, status domain.LeaseStatus) (passes int) {
	t.Helper()
	for passes = 1; ; passes++ {
		w.pass(t)
		shown := testkit.Scalar[string](t, w.rows,
			"select concat_ws(' ', status, problem->>'detail') from leases order by created_at desc limit 1")
		if shown == string(status) {
			return passes
		}
		if passes > 100 {
			t.Fatalf("it is %s, not %s", shown, status)
		}
	}
}

// down has a host fail, or come back.
func (w *hostWorld) down(t *testing.T, host string, isDown bool) {
	t.Helper()
	w.exec(t, `
update nodes set is_up = not $2, status = case when $2 then 'down' else 'up' end,
    down_since = case when $2 then now() - interval '1 hour' end, status_since = now() - interval '1 hour'
where name = $1`, host, isDown)
}

func (w *hostWorld) end(t *testing.T) {
	t.Helper()
	w.exec(t, "update leases set ends_at = now(), version = version + 1 where status = 'active'")
}

// held lists the hosts that a reservation has in Nova, and those that are free for a new one.
func (w *hostWorld) held(t *testing.T) []string {
	t.Helper()
	return testkit.Scalar[[]string](t, w.rows, `
select coalesce(array_agg(node order by node), '{}') from allocations
where prepared_at is not null and released_at is null`)
}

// clean checks that only the pool is left in the cloud, with all hosts.
func (w *hostWorld) clean(t *testing.T) {
	t.Helper()
	if left := w.cloud.left(); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	pool := w.cloud.aggregates[leases.PoolAggregate]
	if slices.Sort(pool.Hosts); !slices.Equal(pool.Hosts, []string{"h1", "h2", "h3"}) || len(pool.Metadata) != 1 {
		t.Errorf("the pool is %+v", pool)
	}
	if held := w.held(t); len(held) > 0 {
		t.Errorf("held are %v", held)
	}
	if id, host := w.cloud.launch(""); host != "" {
		t.Errorf("server %s got onto the idle host %s", id, host)
	}
}
