package process_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	runleases "github.com/cloudfn/cloudfn/functions/run-leases"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// killer kills a process at one of its calls to the cloud: before the call is made, during it, or after it.
type killer struct {
	left    atomic.Int64 // calls until the kill; 0 = none
	process atomic.Pointer[testkit.Process]
	killed  chan struct{}
}

func (k *killer) before(*http.Request) {
	if k.left.Load() == 0 || k.left.Add(-1) > 0 {
		return
	}
	if rand.IntN(2) == 0 {
		k.kill()
		return
	}
	go func() {
		time.Sleep(rand.N(100 * time.Millisecond))
		k.kill()
	}()
}

func (k *killer) kill() {
	k.process.Load().Kill()
	select {
	case k.killed <- struct{}{}:
	default:
	}
}

// accountBehind is the environment of an event function with an account, whose calls of compute and placement the
// killer counts.
func (k *killer) accountBehind(t *testing.T, function string) map[string]string {
	t.Helper()
	to := map[string]string{}
	for _, service := range []string{"compute", "placement"} {
		to[service], _ = testkit.Intercept(t, testkit.Endpoint(t, service), k.before)
	}
	env := testkit.RedirectTo(t, to).Env(t, "leases")
	env["FUNCTION_TARGET"], env["LEASES_OS_CLOUD"], env["NODES_OS_CLOUD"] = function, "", ""
	return env
}

// begin starts the process again, as Knative does after a kill.
func (k *killer) begin(t *testing.T, l *lessee) {
	t.Helper()
	l.restart(t)
	k.process.Store(l.process)
}

// restart replaces a process that was killed. The claims of the dead one end after seconds, as if a minute had passed.
func (l *lessee) restart(t *testing.T) {
	t.Helper()
	l.process = testkit.Spawn(t, l.env)
	time.Sleep(3 * time.Second)
	const endSQL = "update leases set claimed_until = clock_timestamp() where claimed_until > clock_timestamp()"
	if _, err := l.conn.Exec(t.Context(), endSQL); err != nil {
		t.Fatal(err)
	}
}

// through brings a lease to a status, with kills at random calls on the way. It says how many there were.
func (k *killer) through(t *testing.T, l *lessee, id string, status domain.LeaseStatus, kills int) (n int) {
	t.Helper()
	isThere := func() bool {
		return testkit.Scalar[string](t, l.conn, "select status from leases where id = $1", id) == string(status)
	}
	for range kills {
		if isThere() {
			break
		}
		k.killed = make(chan struct{}, 1)
		k.left.Store(1 + rand.Int64N(9))
		l.tick()
		select {
		case <-k.killed:
			n++
		case <-time.After(20 * time.Second):
			k.left.Store(0)
			l.process.Kill()
		}
		k.begin(t, l)
	}
	k.left.Store(0)
	began := time.Now()
	testkit.Eventually(t, 2*time.Minute, "the lease is "+string(status), func() bool {
		l.tick()
		return isThere()
	})
	t.Logf("%s after %d kills and %s", status, n, time.Since(began).Round(time.Second))
	return n
}

// TestLongHostLeasesSurviveKills: run-leases is killed at 30 random moments of starts and ends, between any two calls
// to the cloud. Each lease ends as it should, and nothing is left in Nova and Placement.
func TestLongHostLeasesSurviveKills(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	hosts := testkit.ReservableHosts(t)
	k := &killer{}
	env := k.accountBehind(t, "run-leases")
	l := newLessee(t, env)
	l.env["DATABASE_URL"] = testkit.As(t, l.database, runleases.Function) // with the rights that it declares
	k.process.Store(l.process)
	l.reserve(t, hosts...)
	kills := 0
	for kills < 30 {
		lease := l.reserveHost(t)
		kills += k.through(t, l, lease.ID.String(), domain.LeaseActive, 4)
		f := lease.Reservations[0].Flavors[0]
		s := testkit.Sandbox(t)
		inside, err := l.Session(t).CreateServer(t.Context(), domain.LaunchSpec{
			FlavorID: f.ID, ImageID: s.ImageID, NetworkIDs: []string{s.NetworkID},
		}, "inside", "", nil)
		if err != nil {
			t.Fatalf("a launch in the reservation: %v", err)
		}
		l.Await(t, inside, "ACTIVE")
		l.at(t, lease.ID.String(), "ends_at = clock_timestamp()")
		kills += k.through(t, l, lease.ID.String(), domain.LeaseEnded, 4)
		if left := l.leftOf(t, lease.Reservations[0].ID.String(), f.ID); len(left) > 0 {
			t.Errorf("after %d kills: left are %v", kills, left)
		}
		if got := l.events(t, lease.ID.String()); got != "pending starting active ending ended" {
			t.Errorf("its events are %q", got)
		}
	}
	if servers := l.Servers(t); len(servers) > 0 {
		t.Errorf("%d servers are left", len(servers))
	}
}

// reserveHost stores a lease of a host that starts now, as the function leases does it, with a copy of the sandbox's
// flavor.
func (l *lessee) reserveHost(t *testing.T) domain.Lease {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(l.database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	id, s := uuid.New(), testkit.Sandbox(t)
	lease := domain.Lease{
		ID: uuid.Must(uuid.NewV7()), ProjectID: l.ID, DomainID: l.DomainID, UserID: l.UserID, Name: "killed",
		StartsAt: time.Now(), EndsAt: time.Now().Add(time.Hour), OnEnd: domain.OnEndDelete,
		Reservations: []domain.Reservation{{
			ID: id, Type: domain.HostReservation, Request: &domain.HostRequest{Min: 1, Max: 1},
			Flavors: []domain.LeasedFlavor{{
				ID: uuid.NewSHA1(id, []byte(s.FlavorID)).String(), BaseID: s.FlavorID, Base: s.Flavor,
				Name: s.Flavor + "-" + strings.ReplaceAll(id.String(), "-", "")[:8], VCPUs: 1, RAMMB: 512, DiskGB: 1,
			}},
		}},
	}
	stored, err := postgres.Leases{DB: db}.Create(t.Context(), domain.NewLease{Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// strike kills the process at random moments, each time while run-leases and run-connections work, and starts it again.
func (l *lessee) strike(t *testing.T, kills int) {
	t.Helper()
	for range kills {
		l.wake("run-leases")
		l.wake("run-connections")
		time.Sleep(rand.N(2 * time.Second)) // it has worked for two seconds already
		l.process.Kill()
		l.restart(t)
	}
}

// TestLongInstanceLeasesSurviveKills: run-leases and run-connections are killed at random moments while leases of
// instances are prepared, start and end. Each ends as it should, nothing is done twice, and no trust is left.
func TestLongInstanceLeasesSurviveKills(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	l := newLessee(t, nil)
	ids, servers := []string{}, []string{}
	for n := range 2 {
		instance, server := l.launch(t, "")
		lease := l.lease(t, fmt.Sprintf(`{"name": "killed %d", "start": %q, "duration": "PT1H",
			"reservations": [{"type": "instance", "instance_id": %q}]}`, n,
			time.Now().Add(time.Hour).UTC().Format(time.RFC3339), instance))
		ids, servers = append(ids, lease.ID), append(servers, server)
	}
	are := func(status domain.LeaseStatus, inNova string) {
		t.Helper()
		l.strike(t, 3)
		for n, id := range ids {
			testkit.Eventually(t, 3*time.Minute, "the server is "+inNova, func() bool {
				l.wake("run-connections")
				l.tick()
				s, err := admin(t).Server(t.Context(), servers[n])
				return err == nil && s.Status == inNova
			})
			l.becomes(t, id, status)
		}
	}
	are(domain.LeasePending, "SHELVED_OFFLOADED")
	for _, id := range ids {
		l.at(t, id, "starts_at = clock_timestamp()")
	}
	are(domain.LeaseActive, "ACTIVE")
	for _, id := range ids {
		l.at(t, id, "ends_at = clock_timestamp()")
	}
	are(domain.LeaseEnded, "SHELVED_OFFLOADED")
	for n, id := range ids {
		if got, want := l.events(t, id), "pending starting active ending ended"; got != want {
			t.Errorf("its events are %q, want %q", got, want)
		}
		log, err := admin(t).Actions(t.Context(), servers[n])
		done := map[string]int{}
		for _, a := range log {
			done[a.Name]++
		}
		if err != nil || done["shelve"] != 2 || done["unshelve"] != 1 {
			t.Errorf("Nova has done %v: %v; want 2 shelve and 1 unshelve", done, err)
		}
	}
	testkit.Eventually(t, 2*time.Minute, "the trusts are deleted", func() bool {
		l.wake("run-connections")
		l.tick()
		return len(l.TrustsForAdmin(t)) == 0
	})
}
