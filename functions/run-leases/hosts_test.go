package runleases

import (
	"context"
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
	dies  *crasher // at its next call, or never
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

// lease makes a lease of one host with one flavor, and returns its reservation.
func (w *hostWorld) lease(t *testing.T, change func(*domain.Lease)) domain.Reservation {
	t.Helper()
	id := uuid.New()
	lease := domain.Lease{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p", DomainID: "d", UserID: "u", Name: "workshop",
		StartsAt: time.Now(), EndsAt: time.Now().Add(time.Hour), OnEnd: domain.OnEndDelete,
		Reservations: []domain.Reservation{{
			ID: id, Type: domain.HostReservation, Want: &domain.HostWant{Min: 1, Max: 1},
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
	s := &service{db: w.db, leases: postgres.Leases{DB: w.db}}
	s.engine = leases.Engine{
		Store: crashingStore{s.leases, w.dies}, Actions: postgres.Actions{DB: w.db},
		Instances: postgres.Instances{DB: w.db}, Connections: postgres.Delegations{DB: w.db},
		Nodes: postgres.Nodes{DB: w.db}, Cloud: func(context.Context) (leases.Cloud, error) { return w.cloud, nil },
		Wake: func(...string) {}, RetryFor: time.Minute, ClaimFor: time.Minute,
	}
	w.cloud.called = w.dies.wrote
	if died = s.pass(t); died {
		w.exec(t, "update leases set claimed_until = now()") // as time ends the claim
	}
	return died
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
	if id, host := w.cloud.launch("p", ""); host != "" {
		t.Errorf("server %s got onto the idle host %s", id, host)
	}
}

// TestReplacedHostWithServers: a host that was replaced and comes back with servers of the reservation is neither the
// pool's nor anybody else's until they are gone.
func TestReplacedHostWithServers(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	r := w.lease(t, nil)
	w.becomes(t, domain.LeaseActive)
	id, old := w.cloud.launch("p", r.Flavors[0].ID)
	if old == "" {
		t.Fatal("no server gets onto the reserved host")
	}
	w.down(t, old, true)
	w.pass(t)
	w.down(t, old, false)
	w.pass(t)
	if held := w.held(t); len(held) != 2 || !slices.Contains(held, old) {
		t.Errorf("the reservation has %v, and server %s is on %s", held, id, old)
	}
	if _, host := w.cloud.launch("p", r.Flavors[0].ID); host == old || host == "" {
		t.Errorf("a new server is on %q, and %s was replaced", host, old)
	}
	delete(w.cloud.servers, id)
	w.pass(t)
	if held := w.held(t); len(held) != 1 || held[0] == old {
		t.Errorf("without servers on %s the reservation has %v", old, held)
	}
	w.end(t)
	w.becomes(t, domain.LeaseEnded)
	w.clean(t)
}

// TestEndOnDeadHost: a lease whose host is down with servers to shelve ends when they are shelved, and not before.
func TestEndOnDeadHost(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	r := w.lease(t, func(l *domain.Lease) { l.OnEnd = domain.OnEndShelve; l.Reservations[0].Want.VCPUs = 1 })
	w.becomes(t, domain.LeaseActive)
	id, host := w.cloud.launch("p", r.Flavors[0].ID)
	w.exec(t, "update nodes set pool = 'leaving' where name <> $1", host) // no other host can replace it
	w.down(t, host, true)
	w.end(t)
	for range 3 {
		w.pass(t)
	}
	if held := w.held(t); !slices.Equal(held, []string{host}) {
		t.Errorf("a host with a server is not held: %v", held)
	}
	delete(w.cloud.servers, id)
	w.exec(t, "update nodes set pool = 'reservable'")
	w.becomes(t, domain.LeaseEnded)
	w.clean(t)
}

// TestServersOnTheWay: a server that Nova is still building when the lease ends, without a host yet, is waited for, and
// ended.
func TestServersOnTheWay(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	r := w.lease(t, nil)
	w.becomes(t, domain.LeaseActive)
	id, host := w.cloud.launch("p", r.Flavors[0].ID)
	w.cloud.servers[id].Host, w.cloud.servers[id].Status = "", "BUILD"
	w.cloud.servers[id].CreatedAt = time.Now()
	w.end(t)
	for range 3 {
		w.pass(t)
	}
	if held := w.held(t); !slices.Equal(held, []string{host}) {
		t.Errorf("the host was returned before the server got onto it: held are %v", held)
	}
	w.cloud.servers[id].Host, w.cloud.servers[id].Status = host, "ACTIVE"
	w.becomes(t, domain.LeaseEnded)
	w.clean(t)
}

// TestOccupiedHost: a host on which somebody's server is, is not given to a lease, and is not reservable until it is
// empty. One that is occupied when a lease ends is not reservable either.
func TestOccupiedHost(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	first := w.lease(t, nil)
	node := testkit.Scalar[string](t, w.rows, "select node from allocations where reservation_id = $1", first.ID)
	w.cloud.servers["stranger"] = &domain.Server{ID: "stranger", ProjectID: "other", Host: node, Status: "ACTIVE"}
	w.becomes(t, domain.LeaseActive)
	if held := w.held(t); len(held) != 1 || held[0] == node {
		t.Errorf("the lease has %v, and %s has a server of others", held, node)
	}
	pool := "select pool || ': ' || reason from nodes where name = $1"
	if got := testkit.Scalar[string](t, w.rows, pool, node); got != "joining: 1 server runs on host "+node+
		": move or delete them first" {
		t.Errorf("%s is %q", node, got)
	}
	w.cloud.servers["stranger"].Host = w.held(t)[0]
	w.move(t)
	if got := testkit.Scalar[string](t, w.rows, pool, node); got != "reservable: " {
		t.Errorf("%s is %q", node, got)
	}
	last := w.held(t)[0]
	w.end(t)
	w.becomes(t, domain.LeaseEnded)
	if got := testkit.Scalar[string](t, w.rows, pool, last); got[:7] != "joining" {
		t.Errorf("%s is %q", last, got)
	}
	delete(w.cloud.servers, "stranger")
	w.move(t)
	w.clean(t)
}

// TestPublicTraitIsReplaced: the pool and an active lease of an installation from before migration 034 get the new trait.
// Servers of the lease still get onto its host, and an image with the old trait onto none.
func TestPublicTraitIsReplaced(t *testing.T) {
	t.Parallel()
	const public = "CUSTOM_CLOUDFN_RESERVABLE"
	w := newHostWorld(t)
	r := w.lease(t, nil)
	old := "CUSTOM_CLOUDFN_LEASE_" + strings.ToUpper(strings.ReplaceAll(r.ID.String(), "-", ""))
	w.exec(t, "update reservations set trait = $1", old)
	w.becomes(t, domain.LeaseActive)
	w.cloud.flavors[r.Flavors[0].ID].ExtraSpecs["trait:"+public] = "required"
	w.cloud.traits = map[string]bool{public: true, old: true}
	pool := w.cloud.aggregates[leases.PoolAggregate]
	pool.Hosts, pool.Metadata = []string{"h1", "h2", "h3"}, map[string]string{"trait:" + public: "required"}
	for _, host := range pool.Hosts {
		isHeld := w.cloud.provided[host][old]
		w.cloud.provided[host] = map[string]bool{public: true}
		if isHeld {
			w.cloud.provided[host][old] = true
		}
	}
	if _, host := w.cloud.launch("p", "", public); host == "" {
		t.Fatal("the world is not that of before")
	}
	w.cloud.servers = map[string]*domain.Server{}
	w.move(t)
	w.pass(t)
	if _, host := w.cloud.launch("p", "", public); host != "" {
		t.Errorf("an image with the old trait gets onto %s", host)
	}
	if _, host := w.cloud.launch("p", r.Flavors[0].ID); host != w.held(t)[0] {
		t.Errorf("a server of the lease gets onto %q", host)
	}
	w.end(t)
	w.becomes(t, domain.LeaseEnded)
	w.clean(t)
}
