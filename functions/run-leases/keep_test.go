package runleases

import (
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

// TestKeepCalls: to look after an unchanged lease of one host with 20 flavors takes 5 calls. Fifty of them share two
// lists, and take 3 calls more each.
func TestKeepCalls(t *testing.T) {
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

// TestDriftIsRepaired: what somebody has deleted or changed by hand is made again, although leases share their lists.
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
		"the property is gone":        func() { clear(w.cloud.aggregates[own].Metadata) },
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
		w.lease(t, func(l *domain.Lease) { *l.Reservations[0].Want = domain.HostWant{Min: hosts, Max: hosts} })
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
