package watchnodes

import (
	"strings"
	"sync"
	"testing"
	"time"

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

// TestOldDrainsStay: that old drains cannot be deleted is the event's error, and keeps neither the hosts from being
// watched nor the account's session.
func TestOldDrainsStay(t *testing.T) {
	t.Parallel()
	w := watch(t, "a")
	w.exec("alter table drains rename column ended_at to hidden")
	err := w.newRunner().Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "retire") || len(w.nova.forgot) > 0 {
		t.Errorf("got %v, it forgets the session after %v", err, w.nova.forgot)
	}
	if got := w.text("select status from nodes where name = 'a'"); got != "up" {
		t.Errorf("the host is %q", got)
	}
}

// TestOutageIsHeld: hosts that are out of service together are not cordoned, by however many replicas, and that is one
// event. When most of them are back, the others have their whole time again.
func TestOutageIsHeld(t *testing.T) {
	t.Parallel()
	w := watch(t, "a", "b", "c", "d", "e")
	w.tick()
	w.exec("update nodes set auto_cordon_after = '1 second'")
	w.nova.read = func(f *fakeNova) {
		f.reported(10 * time.Minute)
		f.hosts[0].SeenAt, f.hosts[0].IsUp = time.Now(), true
	}
	w.tick()
	w.exec("update nodes set not_up_since = now() - interval '1 hour' where not_up_since is not null")
	var replicas sync.WaitGroup
	for range 3 {
		replicas.Go(func() {
			if err := w.newRunner().Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	replicas.Wait()
	w.tick()
	if got := w.events(domain.MonitorEvent); got != "failed" || w.nova.disabled != 0 {
		t.Errorf("while four of five are down: %q, and %d hosts are cordoned", got, w.nova.disabled)
	}
	w.exec("update nodes set auto_cordon_after = '1 hour'")
	w.nova.read = func(f *fakeNova) {
		f.reported(0)
		f.hosts[4].SeenAt, f.hosts[4].IsUp = time.Now().Add(-20*time.Minute), false
	}
	w.tick()
	w.tick()
	if got := w.events(domain.MonitorEvent); got != "failed works" || w.nova.disabled != 0 {
		t.Errorf("when one is down: %q, and %d hosts are cordoned", got, w.nova.disabled)
	}
	w.exec("update monitors set ended_at = now() - interval '1 hour'")
	w.tick()
	w.tick()
	if w.nova.disabled != 1 {
		t.Errorf("%d hosts are cordoned an hour later", w.nova.disabled)
	}
}
