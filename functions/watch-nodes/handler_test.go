package watchnodes

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
