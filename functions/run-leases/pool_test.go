package runleases

import (
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
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

// TestProbeOfManyHosts: of a large pool some hosts are tested, and the detail has their number.
func TestProbeOfManyHosts(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	w.exec(t, `insert into nodes (name, pool) select 'many-' || n, 'reservable' from generate_series(1, 997) n`)
	got, ok, err := leases.Pool{Nodes: postgres.Nodes{DB: w.db}, Cloud: w.cloud}.Probe(t.Context(), nil)
	if err != nil || !ok || !strings.Contains(got.Detail, "on 40 of 1000 idle hosts") || w.cloud.probed != 40 {
		t.Errorf("%d were tested: %+v %t %v", w.cloud.probed, got, ok, err)
	}
}
