package watchnodes

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/testkit"
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

// TestTick watches the sandbox's hosts: the first poll of hosts that are up makes no event.
func TestTick(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	app, conn := testkit.Start(t, testkit.Env(t, database, nil), Function), testkit.Pool(t, database)
	if a := app.Tick(t, "watch-nodes"); a.Status != 204 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	hosts, err := testkit.Session(t, "leases").ComputeHosts(t.Context())
	if err != nil || len(hosts) == 0 {
		t.Fatalf("%d hosts: %v", len(hosts), err)
	}
	for _, h := range hosts {
		if status := testkit.Scalar[string](t, conn, "select status from nodes where name = $1", h.Name); h.IsUp &&
			status != "up" {
			t.Errorf("host %s is %s", h.Name, status)
		}
	}
}

// TestNoAccount does nothing without an account, and says so in a drain.
func TestNoAccount(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"NODES_OS_CLOUD": ""}), Function)
	if a := app.Tick(t, "watch-nodes"); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	conn := testkit.Pool(t, database)
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from nodes"); n != 0 {
		t.Errorf("%d nodes are stored", n)
	}
}

// TestMeasure has every metric of a node, and those of its drain.
func TestMeasure(t *testing.T) {
	t.Parallel()
	found := nodes.Observed{
		Nodes: []domain.Node{
			{
				Name: "a", Zone: "z", Status: domain.NodeUp, Enabled: true, Servers: 3, Usage: domain.HostUsage{
					VCPUs: 64, UsedVCPUs: 6, RAMMB: 512, UsedRAMMB: 51, DiskGB: 40, UsedDiskGB: 4,
				},
			},
			{Name: "b", Status: domain.NodeDown},
		},
		Drains: []domain.DrainProgress{{Node: "a", Moved: 5, Unmoved: 2, Skipped: 1}},
	}
	var got []string
	values := measure(found)
	for _, v := range values {
		line := []string{strings.TrimPrefix(v.Gauge, "cloudfn.")}
		for _, key := range []string{"node", "zone", "state", "status", "resource"} {
			if v.By[key] != "" {
				line = append(line, v.By[key])
			}
		}
		if v.N != 0 {
			got = append(got, fmt.Sprintf("%s=%d", strings.Join(line, " "), v.N))
		}
	}
	slices.Sort(got)
	want := []string{
		"node.capacity a z disk_gb=40", "node.capacity a z ram_mb=512", "node.capacity a z vcpus=64",
		"node.drain.servers a left=2", "node.drain.servers a moved=5", "node.drain.servers a skipped=1",
		"node.schedulable a z=1", "node.servers a z=3", "node.state a z up=1", "node.state b down=1",
		"node.used a z disk_gb=4", "node.used a z ram_mb=51", "node.used a z vcpus=6",
		"nodes down=1", "nodes up=1", "nodes.drains_running=1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	zeros := len(values) - len(got)
	if want := 2*3 + 1 + 1 + 2; zeros != want { // states, schedulable, servers, statuses
		t.Errorf("%d values are 0, want %d", zeros, want)
	}
}
