package process_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDrain is TestLongDrainTwice with three servers: one that runs, one that is stopped and one in ERROR. watch-nodes
// is killed in the middle, the drain is cancelled, another one moves the rest, and the host is given back.
func TestDrain(t *testing.T) {
	t.Parallel()
	d := newDrainer(t)
	servers := testkit.NewProject(t).ServersOn(t, d.from, "drained", 3)
	testkit.Act(t, servers[0].ID, map[string]any{"os-stop": nil})
	testkit.Act(t, servers[1].ID, map[string]any{"os-resetState": map[string]any{"state": "error"}})
	testkit.Eventually(t, time.Minute, "one is stopped", func() bool {
		time.Sleep(200 * time.Millisecond)
		return d.count(t, d.from) == "ACTIVE 1, ERROR 1, SHUTOFF 1"
	})
	first := d.drain(t, d.from, 1)
	d.kill(t, 5)
	d.post(t, d.from, "cancel-drain", "{}", http.StatusAccepted)
	over := d.ends(t, first)
	moved, left, skipped := over.Counts()
	if over.Status != domain.DrainCancelled || moved > 1 || moved+left+skipped > 3 {
		t.Errorf("the drain is %s (%s): %+v", over.Status, over.Reason, over.Servers)
	}
	if on := len(d.on(t, d.from)); on != 3-moved {
		t.Errorf("%d servers are on %s, and %d have moved", on, d.from, moved)
	}

	second := d.drain(t, d.from, 2)
	// No server is about to land here, so the drain need not wait for one.
	if _, err := d.conn.Exec(t.Context(),
		"update drains set created_at = created_at - interval '1 minute' where id = $1", second); err != nil {
		t.Fatal(err)
	}
	over = d.ends(t, second)
	if over.Status != domain.DrainDone {
		t.Errorf("the drain is %s (%s): %+v", over.Status, over.Reason, over.Servers)
	}
	if from, to := d.count(t, d.from), d.count(t, d.to); from != "ERROR 1" || to != "ACTIVE 1, SHUTOFF 1" {
		t.Errorf("on %s are %s, on %s are %s", d.from, from, d.to, to)
	}
	for _, s := range servers {
		if n := migrations(t, s.ID, d.from); n != 1 && s.ID != servers[1].ID {
			t.Errorf("server %s was migrated %d times", s.ID, n)
		}
	}
	d.post(t, d.from, "uncordon", "{}", http.StatusOK)
	if service, err := d.admin.ComputeService(t.Context(), d.from); err != nil || !service.IsEnabled {
		t.Errorf("after uncordon: %+v %v", service, err)
	}
}
