package process_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestFaultNodeStopped: a nova-compute that is stopped is suspect, then down, and up again after its start, with an
// event at each step. The servers of its host stay there.
func TestFaultNodeStopped(t *testing.T) {
	host := testkit.ReservableHosts(t)[1]
	p, database := testkit.NewProject(t), testkit.Database(t)
	servers := p.ServersOn(t, host, "stays", 1)
	conn := testkit.Connect(t, database)
	// A report comes every 10 s.
	watcher := testkit.Spawn(t, testkit.Env(t, database, map[string]string{
		"FUNCTION_TARGET": "watch-nodes", "NODES_SUSPECT_AFTER": "20s", "NODES_DOWN_AFTER": "40s",
	}))
	becomes := func(status domain.NodeStatus) {
		t.Helper()
		testkit.Eventually(t, 4*time.Minute, "the node is "+string(status), func() bool {
			ping(watcher, "watch-nodes")
			time.Sleep(time.Second)
			return testkit.Scalar[string](t, conn,
				"select coalesce((select status from nodes where name = $1), '')", host) == string(status)
		})
	}
	becomes(domain.NodeUp)
	stopServices(t, "nova-"+host)
	becomes(domain.NodeSuspect)
	becomes(domain.NodeDown)
	found, err := admin(t).HostServers(t.Context(), host)
	if err != nil || len(found) != 1 || found[0].ID != servers[0].ID {
		t.Errorf("the servers on %s are %+v: %v", host, found, err)
	}
	startServices(t, "nova-"+host)
	becomes(domain.NodeUp)
	got := testkit.Scalar[string](t, conn, `
select string_agg(concat_ws('>', data->>'previous_status', data->>'status'), ' ' order by seq)
from events where subject = $1 and type = $2`, host, domain.NodeEvent)
	if want := "up>suspect suspect>down down>up"; got != want {
		t.Errorf("its events are %q, want %q", got, want)
	}
	reason := testkit.Scalar[string](t, conn, `
select data->>'reason' from events where subject = $1 and data->>'status' = 'down'`, host)
	if !strings.Contains(reason, "has not reported since") {
		t.Errorf("the reason is %q", reason)
	}
	if n := migrations(t, servers[0].ID, host); n != 0 {
		t.Errorf("its server was moved %d times", n)
	}
}
