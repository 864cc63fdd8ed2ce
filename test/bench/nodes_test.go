//go:build bench

package bench

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	watchedNodes   = 500
	watchedServers = 20 // on each
	watchRounds    = 5
)

// TestNodes counts the calls to Nova and takes the time of one event of the whole function watch-nodes, in a process of
// its own with Postgres, for 500 hosts of a fake Nova: the sandbox has four.
func TestNodes(t *testing.T) {
	fake := newFakeCloud(t, 0)
	fake.hosts(t, watchedNodes, watchedServers)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "watch-nodes", "DATABASE_URL": database, "HOST": "127.0.0.1", "EVENT_KEY": testkit.EventKey,
		"OS_AUTH_URL": fake.URL + "/v3", "NODES_OS_USERNAME": "watcher", "NODES_OS_PASSWORD": "secret",
		"NODES_OS_USER_DOMAIN_ID": "default", "NODES_OS_PROJECT_NAME": "admin", "NODES_OS_PROJECT_DOMAIN_ID": "default",
	})
	tick := func() {
		if a := p.Tick(t, "watch-nodes"); a.Status != http.StatusNoContent {
			p.Kill()
			t.Fatalf("got %d: %s", a.Status, p.Log())
		}
	}
	tick() // logs in; that is once in 20 minutes
	var requests, took []float64
	for range watchRounds {
		n, _ := fake.count(func() { took = append(took, timed(tick)) })
		requests = append(requests, float64(n))
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from nodes where status = 'up' and servers = $1",
		watchedServers); n != watchedNodes {
		t.Errorf("%d of %d hosts are up with their servers", n, watchedNodes)
	}
	if median(requests) > 2 {
		t.Errorf("%.0f calls a tick", median(requests))
	}
	name := fmt.Sprintf("watch %d nodes with %d servers each (fake Nova), ", watchedNodes, watchedServers)
	report(result{
		number: "14a", name: name + "calls a tick : 2", ours: fmt.Sprintf("%.0f", median(requests)), peer: "2",
		ratio: median(requests) / 2, target: atMost(1),
	})
	report(result{
		number: "14b", name: name + "time of a tick : a minute", ours: showMS(median(took)), peer: "60 s",
		ratio: median(took) / float64(time.Minute.Milliseconds()), target: atMost(1),
	})
}

// hosts serves so many hosts, each with so many servers.
func (f *fakeCloud) hosts(t *testing.T, hosts, servers int) {
	t.Helper()
	type object map[string]any
	services, driven := make([]object, hosts), make([]object, hosts)
	for i := range hosts {
		name := fmt.Sprintf("compute-%04d", i)
		on := make([]object, servers)
		for n := range on {
			on[n] = object{"uuid": fmt.Sprintf("%08d-0000-4000-8000-%012d", i, n), "name": "instance"}
		}
		services[i] = object{
			"id": fmt.Sprintf("%08d-1111-4000-8000-000000000000", i), "binary": "nova-compute", "host": name,
			"zone": "nova", "status": "enabled", "state": "up", "disabled_reason": nil,
		}
		driven[i] = object{
			"id": fmt.Sprintf("%08d-2222-4000-8000-000000000000", i), "hypervisor_hostname": name, "servers": on,
			"hypervisor_type": "QEMU", "hypervisor_version": 7002000, "vcpus": 64, "memory_mb": 262144,
			"local_gb": 4000, "local_gb_used": 100, "cpu_info": object{"arch": "x86_64"},
			"service": object{"host": name, "id": i},
		}
	}
	body, err := json.Marshal(object{"hypervisors": driven})
	must(t, err)
	f.handle("GET /compute/os-hypervisors/detail", func(w http.ResponseWriter, _ *http.Request) { f.send(w, body) })
	f.handle("GET /compute/os-services", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now().UTC().Format("2006-01-02T15:04:05.000000")
		for _, s := range services {
			s["updated_at"] = now
		}
		list, err := json.Marshal(object{"services": services})
		if err != nil {
			panic(err)
		}
		f.send(w, list)
	})
}
