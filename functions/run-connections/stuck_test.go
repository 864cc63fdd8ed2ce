package runconnections

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongStuckCloudDelaysNoOther: while connections wait for services that do not answer, another connection to the
// same cloud completes its action, and its servers are read. The cloud is a fake, because the sandbox cannot hang for
// one project only.
func TestLongStuckCloudDelaysNoOther(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 3, 6} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			w, f := fakes(t), newFakeCloud(t)
			defer close(f.ended)
			for range n {
				c := w.remote(t, f)
				instance, _ := w.runs(t, f, c, "SHUTOFF", domain.InstanceStopped)
				w.ask(t, c, instance, domain.ActionRequest{Action: domain.Stop}, nil)
				f.stuck = append(f.stuck, c.ActsAs.ProjectID)
			}
			healthy := w.remote(t, f)
			instance, _ := w.runs(t, f, healthy, "SHUTOFF", domain.InstanceActive)
			// so the healthy connection is the last to be read
			w.exec(t, "update connections set read_at = clock_timestamp() where id = $1", healthy.ID)
			p := w.function(t, nil)
			go func() { _, _ = p.TryTick(t, "run-connections") }()
			if n > 0 {
				testkit.Eventually(t, time.Minute, "the others are stuck",
					func() bool { return f.count("/compute/flavors") >= min(n, poolSize) })
			}
			stop := w.ask(t, healthy, instance, domain.ActionRequest{Action: domain.Stop}, nil)
			w.exec(t, "update connections set read_at = null where id = $1", healthy.ID)
			testkit.Eventually(t, time.Minute, "the action has ended",
				func() bool { return w.action(t, stop).Status != domain.ActionRunning })
			testkit.Eventually(t, time.Minute, "the server is read",
				func() bool { return w.eventsOf(t, instance) != "" })
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, request := range f.timeouts {
				if strings.Contains(request, "/compute/servers/") {
					t.Errorf("it had to wait until %s timed out", request)
				}
			}
		})
	}
}
