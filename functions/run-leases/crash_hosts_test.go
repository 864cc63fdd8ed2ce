package runleases

import (
	"fmt"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// life is a lease of a host: its start, the failure of its host, the return of that, and its end.
func (w *hostWorld) life(t *testing.T) (passes int) {
	t.Helper()
	r := w.lease(t, nil)
	passes = w.becomes(t, domain.LeaseActive)
	id, old := w.cloud.launch(r.Flavors[0].ID)
	if old == "" {
		t.Fatal("no server gets onto the reserved host")
	}
	w.down(t, old, true)
	moved := func() bool { held := w.held(t); return len(held) > 0 && (len(held) > 1 || held[0] != old) }
	for ; !moved() || w.dies.names == nil; passes++ {
		w.pass(t)
	}
	for w.pass(t) { // the move is whole
		passes++
	}
	w.down(t, old, false)
	delete(w.cloud.servers, id)
	for ; len(w.held(t)) > 1; passes++ {
		w.pass(t)
	}
	if _, host := w.cloud.launch(r.Flavors[0].ID); host == "" || host == old {
		t.Errorf("after the move a server gets onto %q", host)
	}
	w.end(t)
	passes += w.becomes(t, domain.LeaseEnded)
	w.clean(t)
	return passes
}

// TestHostCrashPoints: a replica dies once after each different call to the cloud and each write of a lease's life. The
// next one continues, and nothing is left.
func TestHostCrashPoints(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	w.dies = &crasher{everyNew: map[string]bool{}}
	w.life(t)
	t.Logf("it died at %d points", len(w.dies.everyNew))
	if len(w.dies.everyNew) < 30 {
		t.Errorf("it died only at %v", w.dies.names)
	}
}

// TestLongHostCrashPoints: one replica dies at one of the points, and the state is right two passes later at most.
func TestLongHostCrashPoints(t *testing.T) {
	t.Parallel()
	whole := newHostWorld(t)
	usual := whole.life(t)
	points := whole.dies.names
	for at := range points {
		t.Run(fmt.Sprintf("%d after %s", at+1, points[at]), func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			w.dies = &crasher{at: at + 1}
			if passes := w.life(t); passes > usual+2 {
				t.Errorf("it took %d passes, and %d without a crash", passes, usual)
			}
		})
	}
}
