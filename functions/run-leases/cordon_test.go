package runleases

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
