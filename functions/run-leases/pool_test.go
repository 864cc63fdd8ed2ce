package runleases

import (
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestIsMoving: a host that waits until it is empty keeps run-leases from sleeping only until it was tried.
func TestIsMoving(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	pool := leases.Pool{Nodes: postgres.Nodes{DB: w.db}, Cloud: w.cloud}
	isMoving := func(want bool, when string) {
		t.Helper()
		if got, err := pool.IsMoving(t.Context()); err != nil || got != want {
			t.Errorf("%s: moving %t, %v", when, got, err)
		}
	}
	isMoving(false, "with three reservable hosts")
	w.cloud.servers["stranger"] = &domain.Server{ID: "stranger", ProjectID: "other", Host: "h1", Status: "ACTIVE"}
	w.exec(t, "update nodes set pool = 'joining' where name = 'h1'")
	isMoving(true, "before the first try")
	w.move(t)
	isMoving(false, "with a server on the host")
	w.exec(t, "update nodes set pool = 'leaving' where name = 'h2'")
	isMoving(true, "with one that leaves")
	delete(w.cloud.servers, "stranger")
	w.move(t)
	w.exec(t, "update nodes set pool = 'joining' where name = 'h2'")
	w.move(t)
	w.clean(t)
}

// TestProbe: the isolation is proven when each idle host refuses the server of the self-test. Of a large pool some
// hosts are tested, and the detail has their number.
func TestProbe(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	for open, want := range map[string]string{"": domain.IsolationProven, "h3": domain.IsolationUnproven} {
		w.cloud.open = open
		got, ok, err := leases.Pool{Nodes: postgres.Nodes{DB: w.db}, Cloud: w.cloud}.Probe(t.Context(), nil)
		if err != nil || !ok || got.Result != want {
			t.Errorf("with %q open: %+v %t %v", open, got, ok, err)
		}
	}
	w.cloud.open, w.cloud.probed = "", 0
	w.exec(t, `insert into nodes (name, pool) select 'many-' || n, 'reservable' from generate_series(1, 997) n`)
	got, ok, err := leases.Pool{Nodes: postgres.Nodes{DB: w.db}, Cloud: w.cloud}.Probe(t.Context(), nil)
	if err != nil || !ok || !strings.Contains(got.Detail, "on 40 of 1000 idle hosts") || w.cloud.probed != 40 {
		t.Errorf("%d were tested: %+v %t %v", w.cloud.probed, got, ok, err)
	}
}

// TestHostOfAnotherAggregate: a host that an aggregate of others isolates does not join the pool, is not given to a
// lease, and degrades the lease that has it. Admins read the name of the aggregate, and the reason ends with it.
func TestHostOfAnotherAggregate(t *testing.T) {
	t.Parallel()
	const want = `host h1 is in the aggregate "gpu", whose property trait:CUSTOM_GPU=required keeps servers of ` +
		`reservations off it: take the host out of that aggregate first`
	const reason = "an aggregate of the cloud keeps servers off a reserved host: the cloud's admin has to take " +
		"the host out of it"
	isolated := func(t *testing.T) *hostWorld {
		t.Helper()
		w := newHostWorld(t)
		w.cloud.aggregates["gpu"] = &domain.Aggregate{ID: 77, Name: "gpu", Metadata: map[string]string{
			"trait:CUSTOM_GPU": "required",
		}}
		w.lease(t, nil)
		w.exec(t, "update allocations set node = 'h1'")
		return w
	}
	shows := func(t *testing.T, w *hostWorld, query, want string) {
		t.Helper()
		if got := testkit.Scalar[string](t, w.rows, query); got != want {
			t.Errorf("%s\n got %s\nwant %s", query, got, want)
		}
	}
	const lease = "select concat_ws(' ', status, degraded, problem->>'detail') from leases"
	const node = "select concat_ws(' ', pool, nullif(reason, '')) from nodes where name = 'h1'"
	t.Run("before it joins", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.exec(t, "update nodes set pool = 'joining' where name = 'h1'")
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.move(t)
		shows(t, w, node, "joining "+want)
		w.cloud.aggregates["gpu"].Hosts = nil
		w.move(t)
		shows(t, w, node, "reservable")
	})
	t.Run("before the start", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.becomes(t, domain.LeaseActive)
		if held := strings.Join(w.held(t), " "); held == "h1" || held == "" {
			t.Errorf("the lease has %q", held)
		}
		shows(t, w, lease, "active f")
		shows(t, w, node, "joining "+want)
	})
	t.Run("of its project", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		own := testkit.Scalar[string](t, w.rows, "select project_id from leases")
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.cloud.aggregates["gpu"].Metadata = map[string]string{"filter_tenant_id": "another project," + own}
		w.becomes(t, domain.LeaseActive)
		if held := strings.Join(w.held(t), " "); held != "h1" {
			t.Errorf("the lease has %q", held)
		}
	})
	t.Run("without another host", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.exec(t, "update nodes set pool = 'leaving' where name <> 'h1'")
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.pass(t)
		shows(t, w, lease, "starting f "+reason)
		w.cloud.aggregates["gpu"].Hosts = nil
		w.becomes(t, domain.LeaseActive)
		shows(t, w, lease, "active f")
	})
	t.Run("of an active lease", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.becomes(t, domain.LeaseActive)
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.pass(t)
		shows(t, w, lease, "active t "+reason)
		w.cloud.aggregates["gpu"].Hosts = nil
		w.pass(t)
		shows(t, w, lease, "active f")
	})
}

// TestCordonedHost: a host that is cordoned when its lease begins is replaced, whichever step a replica dies at.
// Without another host the lease is degraded until there is one.
func TestCordonedHost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, others    string // the pool of the other hosts
		isGiven, isUsed bool   // before the host is cordoned: the reservation has it, with a server
		moved, degraded bool
		remedy          string // ends the degradation
	}{
		{name: "before the start", others: "reservable", moved: true},
		{
			name: "without another host", others: "leaving", degraded: true,
			remedy: "update nodes set pool = 'reservable'",
		},
		{
			name: "until it is uncordoned", others: "leaving", degraded: true,
			remedy: "update nodes set enabled = true",
		},
		{name: "while active", others: "reservable", isGiven: true, moved: true},
		{
			name: "with servers", others: "reservable", isGiven: true, isUsed: true, degraded: true,
			remedy: "update nodes set enabled = true",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			w.dies = &crasher{everyNew: map[string]bool{}}
			r := w.lease(t, nil)
			host := testkit.Scalar[string](t, w.rows, "select node from allocations")
			w.exec(t, "update nodes set pool = $1 where name <> $2", c.others, host)
			if c.isGiven {
				w.becomes(t, domain.LeaseActive)
			}
			var server string
			if c.isUsed {
				server, _ = w.cloud.launch(r.Flavors[0].ID)
			}
			w.exec(t, "update nodes set enabled = false where name = $1", host)
			w.becomes(t, domain.LeaseActive)
			for w.pass(t) {
			}
			held := w.held(t)
			if isMoved := len(held) == 1 && held[0] != host; isMoved != c.moved || w.isDegraded(t) != c.degraded {
				t.Errorf("the reservation has %v of %s, degraded %t", held, host, w.isDegraded(t))
			}
			if c.degraded {
				w.exec(t, c.remedy)
				for w.pass(t) {
				}
				if w.isDegraded(t) {
					t.Error("it stays degraded")
				}
			}
			delete(w.cloud.servers, server)
			w.exec(t, "update nodes set pool = 'reservable'")
			w.end(t)
			w.becomes(t, domain.LeaseEnded)
			w.clean(t)
		})
	}
}

func (w *hostWorld) isDegraded(t *testing.T) bool {
	t.Helper()
	return testkit.Scalar[bool](t, w.rows, "select degraded from leases")
}
