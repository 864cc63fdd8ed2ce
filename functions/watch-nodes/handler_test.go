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

// TestEventsThatAreNotTicks get 4xx, so that nobody sends them again.
func TestEventsThatAreNotTicks(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	ce := func(more ...string) []string {
		return append([]string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/x"}, more...)
	}
	for name, tc := range map[string]struct {
		header []string
		want   int
	}{
		"no event":     {nil, 400},
		"a wrong key":  {ce("Ce-Type", "dev.knative.sources.ping", "Ce-Cloudfnkey", "guess"), 403},
		"another type": {ce("Ce-Type", "com.example.other", "Ce-Cloudfnkey", testkit.EventKey), 415},
	} {
		if a := app.Do(t, "POST", "/events/watch-nodes", "", tc.header...); a.Status != tc.want {
			t.Errorf("%s: got %d %s, want %d", name, a.Status, a.Body, tc.want)
		}
	}
}
