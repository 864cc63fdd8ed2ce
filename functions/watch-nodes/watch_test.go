package watchnodes

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestReadAgain: hosts that have just become suspect are read once more in the same tick, and not in those after it.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		again  time.Duration // how long ago the hosts have reported at the second read
		events string
	}{
		"it was a hiccup":    {0, "up>suspect suspect>up"},
		"it does not report": {100 * time.Second, "up>suspect"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watch(t, "a")
			w.tick()
			w.nova.reads, w.nova.read = 0, func(f *fakeNova) {
				f.reported(100 * time.Second)
				if f.reads > 1 {
					f.reported(tc.again)
				}
			}
			w.tick()
			if got := w.events(domain.NodeEvent); got != tc.events || w.nova.reads != 2 {
				t.Errorf("%d reads, the events are %q, want %q", w.nova.reads, got, tc.events)
			}
			w.tick()
			if w.nova.reads != 3 {
				t.Errorf("%d reads after the next tick", w.nova.reads)
			}
		})
	}
}

// TestUnreadable: nodes that cannot be read are one event, however many ticks that takes, and that they can be read
// again is another one. Nodes do not change meanwhile.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	w := watch(t, "a")
	w.tick()
	w.nova.err = apperr.New(apperr.Unavailable, "nova is away")
	w.tick()
	w.tick()
	if got := w.events(domain.MonitorEvent); got != "failed" {
		t.Errorf("while it fails: %q", got)
	}
	if got := w.text("select reason from monitors"); got != "nova is away" {
		t.Errorf("the reason is %q", got)
	}
	w.nova.err = nil
	w.tick()
	w.tick()
	if got := w.events(domain.MonitorEvent); got != "failed works" {
		t.Errorf("after it: %q", got)
	}
	if got := w.events(domain.NodeEvent); got != "" {
		t.Errorf("events of nodes: %q", got)
	}
}
