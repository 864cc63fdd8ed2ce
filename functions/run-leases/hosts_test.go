package runleases

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
			w.lease(t, func(l *domain.Lease) { l.Reservations[0].Request.Heal = c.heal })
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

// shown is all that tenants read of leases.
func (w *hostWorld) shown(t *testing.T) string {
	t.Helper()
	return testkit.Scalar[string](t, w.rows, `
select coalesce(string_agg(shown, E'\n'), '') from (
    select problem::text from leases union all select problem::text from reservations union all
    select data::text from events) as t (shown)`)
}

// names are what tenants must not read.
var names = regexp.MustCompile(`\bh[0-9]\b|secret|Host not found|cloudfn-(lease|reservable)|CUSTOM_|gpu`)

// TestReasonsNameNoHosts: whichever call of the admin's account fails in a lease's life, and with servers and
// aggregates of others on its hosts, its owner reads why, without names of hosts and aggregates and Nova's words.
func TestReasonsNameNoHosts(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	check := func(when string) {
		t.Helper()
		if found := names.FindAllString(w.shown(t), -1); len(found) > 0 {
			t.Errorf("%s: tenants read %q in\n%s", when, found, w.shown(t))
		}
	}
	failed := map[string]bool{}
	pass := func(call string) {
		for w.cloud.fails = call; w.cloud.fails != ""; w.cloud.fails = "" {
			w.pass(t)
		}
		shown := w.shown(t)
		if strings.Contains(shown, "service account") || strings.Contains(shown, "cannot be ended") {
			failed[call] = true
		}
		check(call)
		w.exec(t, "delete from events")
	}
	life := func(call string) {
		r := w.lease(t, nil)
		pass(call)
		w.becomes(t, domain.LeaseActive)
		id, host := w.cloud.launch(r.Flavors[0].ID)
		w.cloud.aggregates[leases.AggregateName(r.ID)].Hosts = nil
		clear(w.cloud.flavors)
		pass(call)
		w.pass(t)
		w.down(t, host, true) // it is replaced, and comes back
		w.pass(t)
		w.down(t, host, false)
		pass(call)
		delete(w.cloud.servers, id)
		pass(call)
		w.pass(t)
		_, _ = w.cloud.launch(r.Flavors[0].ID)
		w.end(t)
		pass(call)
		w.pass(t)
		pass(call)
		w.becomes(t, domain.LeaseEnded)
		w.clean(t)
		w.exec(t, "delete from allocations") // they book the hosts until the lease was to end
	}
	w.dies = &crasher{}
	life("none")
	calls := map[string]bool{}
	for _, call := range w.cloudCalls() {
		call, _, _ = strings.Cut(call, " ")
		calls[call] = true
	}
	for _, call := range slices.Sorted(maps.Keys(calls)) {
		life(call)
	}
	if len(calls) < 15 || len(failed) < len(calls)-2 {
		t.Errorf("of %d calls %d failed: %v", len(calls), len(failed), failed)
	}

	w.cloud.servers["stranger"] = &domain.Server{ID: "stranger", ProjectID: "other", Status: "ACTIVE"}
	w.cloud.aggregates["gpu"] = &domain.Aggregate{ID: 77, Name: "gpu", Metadata: map[string]string{
		"trait:CUSTOM_GPU": "required",
	}}
	w.lease(t, nil)
	w.exec(t, "update nodes set pool = 'leaving' where name not in (select node from allocations where released_at is null)")
	w.cloud.servers["stranger"].Host = testkit.Scalar[string](t, w.rows, "select node from allocations where released_at is null")
	w.pass(t)
	check("a server of others")
	w.cloud.aggregates["gpu"].Hosts = []string{w.cloud.servers["stranger"].Host}
	w.pass(t)
	check("an aggregate of others")
	if got := w.shown(t); !strings.Contains(got, "the cloud's admin has to take the host out of it") {
		t.Errorf("tenants read %s", got)
	}
}

// TestHostIsNotReturned: a lease waits for the host that another one has not returned, takes another one after three
// minutes, and is in error at last if no other is free.
func TestHostIsNotReturned(t *testing.T) {
	t.Parallel()
	for name, hasOther := range map[string]bool{"with another host": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			first := w.lease(t, nil)
			w.becomes(t, domain.LeaseActive)
			held := w.held(t)[0]
			w.cloud.servers["building"] = &domain.Server{
				ID: "building", ProjectID: tenant, Status: "BUILD", CreatedAt: time.Now(),
				Flavor: domain.FlavorRef{Name: first.Flavors[0].Name},
			}
			w.end(t)
			w.pass(t)
			w.exec(t, `
update allocations set during = tstzrange(now() - interval '1 hour', now() - interval '10 minutes')`)
			w.exec(t, "update leases set due_at = null")
			second := w.lease(t, nil)
			w.exec(t, "update allocations set node = $1 where reservation_id = $2", held, second.ID)
			if !hasOther {
				w.exec(t, "update nodes set pool = 'leaving' where name <> $1", held)
			}
			status := func() string {
				return testkit.Scalar[string](t, w.rows, `
select concat_ws(' ', status, start_result, problem->>'code', problem->>'detail') from leases
order by created_at desc limit 1`)
			}
			const waits = "starting  conflict another lease has not returned its hosts yet"
			for _, w.after = range []time.Duration{0, 2 * time.Minute} {
				if w.pass(t); status() != waits {
					t.Errorf("after %s it is %s", w.after, status())
				}
			}
			for w.after = 4 * time.Minute; w.after < 12*time.Minute; w.after += time.Minute {
				w.pass(t)
			}
			want := "active done"
			if !hasOther {
				want = "error failed conflict another lease has not returned its hosts yet"
			}
			if got := status(); got != want {
				t.Errorf("it is %q, want %q", got, want)
			}
			delete(w.cloud.servers, "building")
			w.exec(t, "update nodes set pool = 'reservable'")
			w.exec(t, "update leases set due_at = now()")
			w.after = 0
			w.pass(t)
			w.becomes(t, domain.LeaseActive)
		})
	}
}

// flavors gives a lease n private flavors.
func flavors(n int) func(*domain.Lease) {
	return func(l *domain.Lease) {
		l.Reservations[0].Flavors = nil
		for range n {
			id := uuid.NewString()
			l.Reservations[0].Flavors = append(l.Reservations[0].Flavors, domain.LeasedFlavor{
				ID: "f-" + id, Name: "tiny-" + id[:8], BaseID: "base",
			})
		}
	}
}

// TestMaintainCalls: to reconcile an unchanged lease of one host with 20 flavors takes 5 calls. Fifty of them share two
// lists, and take 3 calls more each.
func TestMaintainCalls(t *testing.T) {
	t.Parallel()
	for _, all := range []int{1, 50} {
		t.Run(strconv.Itoa(all), func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			w.grow(t, max(all, 3))
			w.inventory = &leases.Inventory{}
			for range all {
				w.lease(t, flavors(20))
			}
			for range 2 { // the second pass of each finds what the first has made
				w.exec(t, "update leases set due_at = now()")
				for testkit.Scalar[int](t, w.rows, "select count(*)::int from leases where due_at <= now()") > 0 {
					w.replica().pass(t)
				}
			}
			if n := testkit.Scalar[int](t, w.rows, "select count(*)::int from leases where status = 'active'"); n != all {
				t.Fatalf("%d leases are active", n)
			}
			w.cloudCalls()
			w.exec(t, "update leases set due_at = now()")
			for testkit.Scalar[int](t, w.rows, "select count(*)::int from leases where due_at <= now()") > 0 {
				w.replica().pass(t)
			}
			calls := w.cloudCalls()
			if len(calls) > 2+3*all {
				slices.Sort(calls)
				t.Errorf("%d calls for %d leases: %s", len(calls), all, strings.Join(calls[:min(len(calls), 60)], ", "))
			}
		})
	}
}

// TestDriftIsRepaired: what an admin has deleted or changed by hand is made again, although leases share their lists.
func TestDriftIsRepaired(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	r := w.lease(t, nil)
	w.becomes(t, domain.LeaseActive)
	w.pass(t)
	host, trait := w.held(t)[0], testkit.Scalar[string](t, w.rows, "select trait from reservations")
	own, flavor := leases.AggregateName(r.ID), r.Flavors[0].ID
	for name, change := range map[string]func(){
		"the aggregate is deleted":    func() { delete(w.cloud.aggregates, own) },
		"the host is taken out":       func() { w.cloud.aggregates[own].Hosts = nil },
		"the property is removed":     func() { clear(w.cloud.aggregates[own].Metadata) },
		"the trait is taken off":      func() { delete(w.cloud.provided[host], trait) },
		"the host is in the pool":     func() { w.cloud.aggregates[leases.PoolAggregate].Hosts = []string{"h1", "h2", "h3"} },
		"the flavor is deleted":       func() { delete(w.cloud.flavors, flavor) },
		"the flavor requires nothing": func() { clear(w.cloud.flavors[flavor].ExtraSpecs) },
	} {
		change()
		w.pass(t)
		if _, on := w.cloud.launch(flavor); on != host {
			t.Errorf("%s: a server gets onto %q, the lease has %s", name, on, host)
		}
		if _, on := w.cloud.launch(""); on != "" {
			t.Errorf("%s: a server of others gets onto %s", name, on)
		}
		clear(w.cloud.servers)
	}
	w.cloud.flavors[flavor].projects = nil
	for minute := range 10 {
		w.after = time.Duration(minute) * time.Minute // in one of ten it is granted again
		w.pass(t)
	}
	if _, on := w.cloud.launch(flavor); on != host {
		t.Errorf("the grant was taken back: a server gets onto %q", on)
	}
}

// TestStartContinues: a start that is interrupted costs no more calls for the hosts that it has done before.
func TestStartContinues(t *testing.T) {
	t.Parallel()
	const hosts, done = 30, 20
	start := func(t *testing.T, at int) (calls []string) {
		t.Helper()
		w := newHostWorld(t)
		w.grow(t, hosts)
		w.dies = &crasher{at: at}
		w.lease(t, func(l *domain.Lease) { *l.Reservations[0].Request = domain.HostRequest{Min: hosts, Max: hosts} })
		w.becomes(t, domain.LeaseActive)
		return w.dies.names
	}
	whole := start(t, 0)
	at := 0
	for taken := 0; taken < done; at++ {
		if strings.HasPrefix(whole[at], "RemoveHost") {
			taken++
		}
	}
	// The second pass reads the lists again, twice, and the servers on the hosts that are left.
	if twice := start(t, at); len(twice) > len(whole)+10+hosts-done {
		t.Errorf("%d calls and writes without an interruption, %d with one: %v", len(whole), len(twice), twice[at:])
	}
}
