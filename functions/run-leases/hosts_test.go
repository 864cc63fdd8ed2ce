package runleases

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestReplacedHostWithServers: a host that was replaced and comes back with servers of the reservation is neither the
// pool's nor another lease's until they are deleted.
func TestReplacedHostWithServers(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	r := w.lease(t, nil)
	w.becomes(t, domain.LeaseActive)
	id, old := w.cloud.launch(r.Flavors[0].ID)
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
	if _, host := w.cloud.launch(r.Flavors[0].ID); host == old || host == "" {
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
	id, host := w.cloud.launch(r.Flavors[0].ID)
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

// TestServersOnTheWay: a server that Nova is still building or unshelving when the lease ends, without a host yet, is
// waited for, and ended.
func TestServersOnTheWay(t *testing.T) {
	t.Parallel()
	old := time.Now().Add(-48 * time.Hour)
	for name, on := range map[string]domain.Server{
		"being built":     {Status: "BUILD", CreatedAt: time.Now(), UpdatedAt: time.Now()},
		"being unshelved": {Status: "SHELVED_OFFLOADED", Task: "unshelving", CreatedAt: old, UpdatedAt: time.Now()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			r := w.lease(t, nil)
			w.becomes(t, domain.LeaseActive)
			id, host := w.cloud.launch(r.Flavors[0].ID)
			server := w.cloud.servers[id]
			server.Host, server.Status, server.Task = "", on.Status, on.Task
			server.CreatedAt, server.UpdatedAt = on.CreatedAt, on.UpdatedAt
			w.end(t)
			for range 3 {
				w.pass(t)
			}
			if held := w.held(t); !slices.Equal(held, []string{host}) {
				t.Errorf("the host was returned before the server got onto it: held are %v", held)
			}
			server.Host, server.Status, server.Task = host, "ACTIVE", ""
			w.becomes(t, domain.LeaseEnded)
			w.clean(t)
		})
	}
}

// TestImageWithTrait: the project's servers that an image with the trait of the reservation has brought onto its host
// end with the lease, and after it none gets there. One that was there before is not the reservation's.
func TestImageWithTrait(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ isOld, unproven, later bool }{
		"by the image": {}, "older than the lease": {isOld: true}, "where others may get in": {unproven: true},
		"proven later": {later: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			if w.unproven = c.unproven; c.later {
				w.testedAt = time.Now().Add(time.Hour)
			}
			stays := c.isOld || c.unproven || c.later
			w.lease(t, nil)
			w.becomes(t, domain.LeaseActive)
			trait := testkit.Scalar[string](t, w.rows, "select trait from reservations")
			id, host := w.cloud.launch("", trait)
			if host != w.held(t)[0] {
				t.Fatalf("a server with the trait is on %q", host)
			}
			if w.cloud.servers[id].CreatedAt = time.Now().UTC().Truncate(time.Second); c.isOld {
				w.cloud.servers[id].CreatedAt = time.Now().Add(-time.Hour)
			}
			w.end(t)
			w.becomes(t, domain.LeaseEnded)
			if _, isThere := w.cloud.servers[id]; isThere != stays {
				t.Errorf("after the lease the server is there: %t", isThere)
			}
			if _, after := w.cloud.launch("", trait); after != "" {
				t.Errorf("after the lease a server gets onto %s", after)
			}
			if delete(w.cloud.servers, id); stays {
				w.move(t)
			}
			w.clean(t)
			if n := testkit.Scalar[int](t, w.rows, "select count(*)::int from nodes where pool = 'reservable'"); n != 3 {
				t.Errorf("%d hosts are reservable", n)
			}
		})
	}
}

// TestServersWithoutHost: on_end is done to servers that are on no host, too: those that no host took, those that Nova
// has lost on the way, and those that their user has shelved. One with data stays if an image of it is to be made
// first: Nova makes none.
func TestServersWithoutHost(t *testing.T) {
	t.Parallel()
	for onEnd, stay := range map[domain.OnEnd]string{
		domain.OnEndDelete: "others", domain.OnEndSnapshotDelete: "others shelved",
		domain.OnEndShelve: "failed lost others shelved",
	} {
		t.Run(string(onEnd), func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			w.dies = &crasher{everyNew: map[string]bool{}}
			r := w.lease(t, func(l *domain.Lease) { l.OnEnd = onEnd })
			w.becomes(t, domain.LeaseActive)
			for id, status := range map[string]string{
				"failed": "ERROR", "lost": "BUILD", "shelved": "SHELVED_OFFLOADED", "others": "ERROR",
			} {
				w.cloud.servers[id] = &domain.Server{
					ID: id, ProjectID: tenant, Status: status, Launched: id == "shelved",
					Flavor: domain.FlavorRef{Name: r.Flavors[0].Name},
				}
			}
			w.cloud.servers["others"].Flavor.Name = "m1.tiny"
			w.end(t)
			w.becomes(t, domain.LeaseEnded)
			if left := strings.Join(slices.Sorted(maps.Keys(w.cloud.servers)), " "); left != stay {
				t.Errorf("left are %q, want %q", left, stay)
			}
			clear(w.cloud.servers)
			w.clean(t)
		})
	}
}

// TestOccupiedHost: a host with a server of others is not given to a lease, and is not reservable until it is
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
		": move or delete it first" {
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

// TestHealIsDamped: a reservation moves when its host has been down for long enough, in Nova and for watch-nodes. One
// with heal manual waits for its host, degraded. Nothing is waited for when an admin has forced the host down.
func TestHealIsDamped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		heal              domain.Heal
		status, since     string
		isMoved, degraded bool
		isForced          bool
	}{
		"one missed report":       {"", "unknown", "1 minute", false, false, false},
		"down for long":           {"", "unknown", "4 minutes", true, false, false},
		"only suspect":            {"", "suspect", "4 minutes", false, false, false},
		"down for watch-nodes":    {"", "down", "4 minutes", true, false, false},
		"down for long, manually": {domain.HealManual, "down", "4 minutes", false, true, false},
		"forced down by an admin": {"", "down", "0 minutes", true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			w.lease(t, func(l *domain.Lease) { l.Reservations[0].Want.Heal = c.heal })
			w.becomes(t, domain.LeaseActive)
			w.exec(t, `
update nodes set is_up = false, status = $1, down_since = now() - $2::interval, forced_down = $3
where name = (select node from allocations)`, c.status, c.since, c.isForced)
			w.pass(t)
			got := testkit.Scalar[string](t, w.rows, `
select concat_ws(' ', (select count(*) from allocations where replaced_at is not null) = 1, l.degraded,
                 (select count(*) from events where data ? 'moved_reservation_id')) from leases l`)
			moves := map[bool]string{false: "0", true: "1"}[c.isMoved]
			if want := fmt.Sprintf("%s %s %s", letter(c.isMoved), letter(c.degraded), moves); got != want {
				t.Errorf("got %s, want %s (moved, degraded, events of a move)", got, want)
			}
		})
	}
}

func letter(b bool) string { return map[bool]string{false: "f", true: "t"}[b] }

// TestProbeAllHosts: the isolation is proven when each idle host refuses the server of the self-test.
func TestProbeAllHosts(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	for open, want := range map[string]string{"": domain.IsolationProven, "h3": domain.IsolationUnproven} {
		w.cloud.open = open
		got, ok, err := leases.Pool{Nodes: postgres.Nodes{DB: w.db}, Cloud: w.cloud}.Probe(t.Context(), nil)
		if err != nil || !ok || got.Result != want {
			t.Errorf("with %q open: %+v %t %v", open, got, ok, err)
		}
	}
}
