package process_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongDrain kills watch-nodes at 20 random calls to Nova while it drains a host of 20 servers. Each server moves
// once, and none is left unconfirmed.
func TestLongDrain(t *testing.T) {
	testkit.Heavy(t)
	d := newDrainer(t)
	special := d.sorts(t, testkit.NewProject(t).ServersOn(t, d.from, "drained", 20))
	id, kills := d.drain(t, d.from, 2), 0
	for kills < 20 && !d.get(t, id).DueAt.IsZero() {
		d.killed = make(chan struct{}, 1)
		d.left.Store(1 + rand.Int64N(12))
		d.tick()
		select {
		case <-d.killed:
			kills++
		case <-time.After(20 * time.Second):
			d.left.Store(0)
			d.running.Kill()
		}
		d.start(t)
	}
	d.left.Store(0)
	over := d.ends(t, id)
	moved, left, skipped := over.Counts()
	t.Logf("after %d kills: %d moved, %d are left, %d skipped", kills, moved, left, skipped)
	if over.Status != domain.DrainDone || moved != 19 || left != 0 || skipped != 1 {
		t.Errorf("the drain is %s (%s): %+v", over.Status, over.Reason, over.Servers)
	}
	for _, s := range over.Servers {
		if n := migrations(t, s.ServerID, d.from); s.Status == domain.DrainMoved && n != 1 {
			t.Errorf("server %s was migrated %d times", s.Name, n)
		}
	}
	d.unchanged(t, special)
}
