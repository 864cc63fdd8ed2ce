package process_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// addHosts makes reservable hosts that no cloud has: for what only the database decides. Each is larger than the one
// before, by the size of the first.
func addHosts(t *testing.T, conn *pgx.Conn, names ...string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), `
insert into nodes (name, zone, pool, vcpus, ram_mb, disk_gb)
select name, 'nova', 'reservable', 32 * n, 65536 * n, 1000 from unnest($1::text[]) with ordinality as h (name, n)`, names)
	if err != nil {
		t.Fatal(err)
	}
}

// slot is a period of hosts that a client wants.
type slot struct {
	start  time.Time
	length time.Duration
	hosts  int
	vcpus  int // of each host, at least
	flavor string
}

func (s slot) duration() string { return fmt.Sprintf("PT%dM", int(s.length.Minutes())) }

func (s slot) body() string {
	return fmt.Sprintf(`{"name": "slot", "start": %q, "duration": %q,
		"reservations": [{"type": "host", "min": %d, "vcpus": %d, "flavors": [%q]}]}`, s.start.Format(time.RFC3339Nano),
		s.duration(), s.hosts, s.vcpus, s.flavor)
}

// freeAt is the time that a refusal names.
func freeAt(t *testing.T, refusal testkit.Answer) (at time.Time) {
	t.Helper()
	var problem struct {
		Errors []struct {
			Field   string
			Allowed []time.Time
		}
	}
	refusal.JSON(t, &problem)
	for _, e := range problem.Errors {
		if e.Field == "start" && len(e.Allowed) == 1 {
			at = e.Allowed[0]
		}
	}
	return at
}

// TestLongBookingByManyClients: 50 clients of three processes book random slots of 2 hosts, and every third client
// wants more than the smaller one has. No host is booked twice, and each refusal names a time from which the hosts can
// be booked.
func TestLongBookingByManyClients(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	addHosts(t, conn, "n001", "n002")
	env := testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "leases", "LEASES_PER_PROJECT": "0"})
	clients := make([]*testkit.Client, 3)
	for n := range clients { // a project locks only itself
		clients[n] = testkit.Spawn(t, env).As(testkit.NewProject(t).Token(t))
	}
	base := time.Now().Add(time.Hour).UTC().Truncate(time.Hour)
	flavor := testkit.Sandbox(t).Flavor
	var all sync.WaitGroup
	var mu sync.Mutex
	var refused []slot // from the times named
	granted := 0
	began := time.Now()
	for n := range 50 {
		all.Go(func() {
			for range 2 {
				s := slot{
					base.Add(time.Duration(rand.IntN(48)) * 30 * time.Minute),
					time.Duration(1+rand.IntN(8)) * 30 * time.Minute, 1 + rand.IntN(2), 1, flavor,
				}
				if n%3 == 0 {
					s.hosts, s.vcpus = 1, 33
				}
				a, err := clients[n%len(clients)].Try(t, http.MethodPost, "/v1/leases", s.body(),
					"Content-Type", "application/json")
				mu.Lock()
				switch at := s.start; {
				case err == nil && a.Status == http.StatusCreated:
					granted++
				case err == nil && a.Status == http.StatusConflict:
					if s.start = freeAt(t, a); !s.start.After(at) {
						t.Errorf("the refusal of %s names no later time: %s", at, a.Body)
					}
					refused = append(refused, s)
				default:
					t.Errorf("neither granted nor refused: %v %d %s", err, a.Status, a.Body)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	t.Logf("%d granted, %d refused in %s", granted, len(refused), time.Since(began).Round(time.Millisecond))
	if granted == 0 || len(refused) < 20 {
		t.Fatal("that is no contention")
	}
	rand.Shuffle(len(refused), func(i, j int) { refused[i], refused[j] = refused[j], refused[i] })
	for _, s := range refused[:20] { // now that nobody else books
		var free struct{ Slots []struct{ Start time.Time } }
		clients[0].Get(t, fmt.Sprintf("/v1/leases/availability?hosts=%d&vcpus=%d&duration=%s&limit=1&from=%s",
			s.hosts, s.vcpus, s.duration(), url.QueryEscape(s.start.Format(time.RFC3339Nano)))).JSON(t, &free)
		if len(free.Slots) != 1 {
			t.Fatalf("nothing is free for %+v", s)
		}
		if first := free.Slots[0].Start; !first.Equal(s.start) { // others have booked since
			a := clients[2].Post(t, "/v1/leases", s.body())
			if at := freeAt(t, a); a.Status != http.StatusConflict || !at.Equal(first) {
				t.Errorf("%+v is free from %s, but got %d %s", s, first, a.Status, a.Body)
			}
			s.start = first
		}
		if a := clients[1].Post(t, "/v1/leases", s.body()); a.Status != http.StatusCreated {
			t.Errorf("%+v is free, but got %d %s", s, a.Status, a.Body)
		}
	}
	if n := testkit.Scalar[int](t, conn, `
select count(*)::int from allocations a join allocations b on a.node = b.node and a.during && b.during
where (a.project_id, a.reservation_id) < (b.project_id, b.reservation_id)`); n != 0 {
		t.Errorf("%d pairs of reservations of a host overlap", n)
	}
	if n := testkit.Scalar[int](t, conn, `
select count(*)::int from allocations a join reservations r on r.id = a.reservation_id
where (r.want->>'vcpus')::int > 32 and a.node = 'n001'`); n != 0 {
		t.Errorf("%d reservations have a host that is too small", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from leases"); n != granted+20 {
		t.Errorf("there are %d leases, and %d were granted", n, granted+20)
	}
}
