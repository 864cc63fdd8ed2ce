package process_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// The tests of this file stop parts of the sandbox that other tests need, so they run by themselves, one after
// the other (make test-long does that).

// TestFaultKeystoneStopped answers 503 while Keystone is stopped, and the daemon starts without it.
func TestFaultKeystoneStopped(t *testing.T) {
	// while Keystone can say who the trustee is
	token, env := testkit.Token(t, "demo"), testkit.DaemonEnv(t, testkit.Database(t))
	stopServices(t, "keystone")
	p := testkit.Spawn(t, env)
	for range 3 {
		if a := p.As(token).Get(t, "/v1/servers"); a.Status != 503 || a.Header.Get("Retry-After") == "" {
			t.Errorf("got %d %s, want 503 with Retry-After", a.Status, a.Body)
		}
	}
	startServices(t, "keystone")
	testkit.Eventually(t, 30*time.Second, "it answers again", func() bool {
		return p.As(token).Get(t, "/v1/servers").Status == 200
	})
}

// TestFaultNovaStopped keeps an order that could not be placed, and places it once when it is sent again.
func TestFaultNovaStopped(t *testing.T) {
	f := testkit.Sandbox(t)
	project := testkit.NewProject(t)
	p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t),
		map[string]string{"FUNCTION_TARGET": "launch"})).As(project.Token(t))
	order := fmt.Sprintf(
		`{"id":"0b8c1b7e-0a43-4a83-bf43-4a1b1d6f0001","name":"later","flavor":%q,"image":%q,"networks":[%q]}`,
		f.FlavorID, f.ImageID, f.NetworkID,
	)
	if a := p.Post(t, "/v1/launch?dry_run=true", order); a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	stopServices(t, "nova-api")
	if a := p.Post(t, "/v1/launch", order); a.Status != 503 || a.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, want 503 with Retry-After", a.Status, a.Body)
	}
	startServices(t, "nova-api")
	testkit.Eventually(t, time.Minute, "the order is placed", func() bool {
		return p.Post(t, "/v1/launch", order).Status/100 == 2
	})
	if n := len(project.Servers(t)); n != 1 {
		t.Errorf("Nova has %d servers, want 1", n)
	}
}

// TestFaultCellDown makes a cell's database unreachable: Nova then leaves its servers out of most lists, without a
// word. The hour must stay missing, and be right once the cell is back.
func TestFaultCellDown(t *testing.T) {
	project := testkit.NewProject(t)
	for _, server := range project.Boot(t, "in the cell", 2) {
		project.Quiet(t, server.ID)
	}
	for _, account := range []string{"collector", "admin"} {
		t.Run(account, func(t *testing.T) {
			database := testkit.Database(t)
			testkit.SetClock(t, database, time.Now().UTC().Truncate(time.Hour).Add(time.Hour))
			p := testkit.Spawn(t, testkit.Env(t, database, map[string]string{
				"FUNCTION_TARGET": "collect-stats", "OS_CLOUD": account, "ALLOWED_PROJECTS": project.ID,
				"STATS_BACKFILL": "1h",
			}))
			conn := testkit.Connect(t, database)
			stopCell(t)
			if a := p.Tick(t, "collect-stats"); a.Status != 503 {
				t.Errorf("got %d %s, want 503", a.Status, a.Body)
			}
			if n := testkit.Scalar[int](t, conn, "select count(*)::int from stats_hourly"); n != 0 {
				t.Errorf("%d rows were written", n)
			}
			startCell(t)
			testkit.Eventually(t, 30*time.Second, "the tick is done", func() bool {
				return p.Tick(t, "collect-stats").Status == 204
			})
			if n := testkit.Scalar[int](t, conn, "select running from stats_hourly"); n != 2 {
				t.Errorf("%d running, want 2: %s", n, testkit.Scalar[string](t, conn,
					"select by_status::text from stats_hourly"))
			}
		})
	}
}

// tracked has servers launched by the function launch, and a replica of poll-instances that has observed them run.
func tracked(t *testing.T, account string, n int) (conn *pgx.Conn, poll func() int) {
	t.Helper()
	f, database := testkit.Sandbox(t), testkit.Database(t)
	project := testkit.NewProject(t)
	conn = testkit.Connect(t, database)
	p := testkit.Spawn(t, testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "launch"})).As(project.Token(t))
	order := fmt.Sprintf(`{"name":"followed","flavor":%q,"image":%q,"networks":[%q],"count":%d}`, f.FlavorID,
		f.ImageID, f.NetworkID, n)
	if a := p.Post(t, "/v1/launch", order); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	poller := testkit.Spawn(t, testkit.Env(t, database, map[string]string{
		"FUNCTION_TARGET": "poll-instances", "OS_CLOUD": account,
	}))
	poll = func() int { return poller.Tick(t, "poll-instances").Status }
	testkit.Eventually(t, 3*time.Minute, "all are active", func() bool {
		return poll() == 204 && inState(t, conn, "active") == n
	})
	for _, s := range project.Servers(t) {
		project.Quiet(t, s.ID)
	}
	return conn, poll
}

func inState(t *testing.T, conn *pgx.Conn, state string) int {
	t.Helper()
	return testkit.Scalar[int](t, conn, "select count(*)::int from instances where state = $1", state)
}

// TestFaultPollNovaStopped: its instances become unknown, none is deleted, and all are as they are once it is back.
func TestFaultPollNovaStopped(t *testing.T) {
	for _, account := range []string{"collector", "admin"} {
		t.Run(account, func(t *testing.T) {
			conn, poll := tracked(t, account, 2)
			stopServices(t, "nova-api")
			for range 5 {
				if status := poll(); status != 503 {
					t.Errorf("got %d, want 503", status)
				}
				// As if Nova had been unavailable for minutes.
				if _, err := conn.Exec(context.Background(), `
update polls set since = since - interval '1 min', full_at = full_at - interval '1 min',
  failing_since = failing_since - interval '1 min', not_before = null;
update instances set seen_at = seen_at - interval '1 min'`); err != nil {
					t.Fatal(err)
				}
			}
			if n := inState(t, conn, "unknown"); n != 2 {
				t.Errorf("%d are unknown, want 2", n)
			}
			startServices(t, "nova-api")
			testkit.Eventually(t, time.Minute, "all are active again", func() bool {
				return poll() == 204 && inState(t, conn, "active") == 2
			})
			query := "select count(*)::int from events where data->>'state' = $1"
			if deleted, unknown := testkit.Scalar[int](t, conn, query, "deleted"),
				testkit.Scalar[int](t, conn, query, "unknown"); deleted != 0 || unknown != 2 {
				t.Errorf("%d events of deletions, %d of unknown, want 0 and each once", deleted, unknown)
			}
		})
	}
}

// TestFaultPollCellDown: Nova leaves the servers of the cell out of its lists of changes, without a word.
func TestFaultPollCellDown(t *testing.T) {
	for _, account := range []string{"collector", "admin"} {
		t.Run(account, func(t *testing.T) {
			conn, poll := tracked(t, account, 2)
			stopCell(t)
			for range 3 {
				poll()
				// As if the looks were far apart.
				if _, err := conn.Exec(context.Background(),
					"update instances set missed_at = missed_at - interval '1 minute'"); err != nil {
					t.Fatal(err)
				}
			}
			if n := inState(t, conn, "unknown"); n != 2 {
				t.Errorf("%d are unknown, want 2", n)
			}
			startCell(t)
			testkit.Eventually(t, time.Minute, "all are active again", func() bool {
				return poll() == 204 && inState(t, conn, "active") == 2
			})
			if n := testkit.Scalar[int](t, conn,
				"select count(*)::int from events where data->>'state' = 'deleted'"); n != 0 {
				t.Errorf("%d events of deletions", n)
			}
		})
	}
}

// TestFaultNeutronStopped names the service that is unavailable: Nova answers 500 then, because a list of servers shows
// security groups.
func TestFaultNeutronStopped(t *testing.T) {
	project := testkit.NewProject(t)
	project.Quiet(t, project.Boot(t, "lists its groups", 1)[0].ID)
	p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t),
		map[string]string{"FUNCTION_TARGET": "servers"})).As(project.Token(t))
	stopServices(t, "neutron-server")
	if a := p.Get(t, "/v1/servers"); a.Status != 503 || !strings.Contains(string(a.Body), "neutron is not available") ||
		a.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, want 503 that names neutron", a.Status, a.Body)
	}
	startServices(t, "neutron-server")
	testkit.Eventually(t, 30*time.Second, "it answers again", func() bool {
		return p.Get(t, "/v1/servers").Status == 200
	})
}

// TestFaultKeystoneStoppedForALaunch: the token is remembered, and no service's 401 is passed on for it.
func TestFaultKeystoneStoppedForALaunch(t *testing.T) {
	f, project := testkit.Sandbox(t), testkit.NewProject(t)
	p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{"FUNCTION_TARGET": "launch"}))
	fresh := p.As(project.Token(t)) // Glance and Nova do not know it yet
	order := fmt.Sprintf(
		`{"id":"0b8c1b7e-0a43-4a83-bf43-4a1b1d6f0002","name":"later","flavor":%q,"image":%q,"networks":[%q]}`,
		f.FlavorID, f.ImageID, f.NetworkID,
	)
	// which reads the catalog
	if a := p.As(project.Token(t)).Post(t, "/v1/launch?dry_run=true", order); a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if a := fresh.Get(t, "/v1/launch"); a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	stopServices(t, "keystone")
	if a := fresh.Post(t, "/v1/launch", order); a.Status != 503 || !strings.Contains(string(a.Body), "keystone") {
		t.Errorf("got %d %s, want 503 that names keystone", a.Status, a.Body)
	}
	startServices(t, "keystone")
	testkit.Eventually(t, 30*time.Second, "it launches", func() bool {
		return fresh.Post(t, "/v1/launch", order).Status < 300
	})
}

// isolates has Nova's scheduler heed isolating aggregates, or not, and starts it again with that.
func isolates(t *testing.T, isOn bool) {
	t.Helper()
	const on, off = "enable_isolated_aggregate_filtering = true", "enable_isolated_aggregate_filtering = false"
	file := filepath.Join(filepath.Dir(testkit.CloudsYAML(t)), "conf", "nova", "nova.conf")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	was, is := on, off
	if isOn {
		was, is = off, on
	}
	changed := strings.Replace(string(text), was, is, 1)
	if !strings.Contains(changed, is) {
		t.Fatalf("%s has no line %q", file, was)
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	sandbox(t, "stop", "nova-scheduler")
	startServices(t, "nova-scheduler")
}

// TestFaultIsolationOff: the self-test says unproven while the scheduler does not isolate the hosts, and proven again
// when it does.
func TestFaultIsolationOff(t *testing.T) {
	host := testkit.ReservableHosts(t)[0]
	l := newLessee(t, nil)
	l.reserve(t, host)
	tested := func(want string) {
		t.Helper()
		testkit.Eventually(t, 3*time.Minute, "the isolation is "+want, func() bool {
			l.tick()
			return testkit.Scalar[int](t, l.conn, "select count(*)::int from isolation where result = $1", want) == 1
		})
	}
	dayLater := func() {
		t.Helper()
		if _, err := l.conn.Exec(t.Context(), `
with again as (update isolation set tested_at = tested_at - interval '25 hours')
delete from jobs where kind = 'run-leases' and key = 'probe'`); err != nil {
			t.Fatal(err)
		}
	}
	tested("proven")
	t.Cleanup(func() { isolates(t, true) })
	isolates(t, false)
	dayLater()
	tested("unproven")
	testkit.Eventually(t, time.Minute, "the server that got onto the host is deleted", func() bool {
		found, err := admin(t).HostServers(t.Context(), host)
		return err == nil && len(found) == 0
	})
	isolates(t, true)
	dayLater()
	tested("proven")
}

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

// TestFaultOptionalPieces: the sandbox stops and starts single pieces of Cinder, Octavia and Barbican, and says which
// are down.
func TestFaultOptionalPieces(t *testing.T) {
	pieces := []string{"cinder-scheduler", "cinder-volume", "octavia-worker", "barbican"}
	down := func() (names []string, err error) {
		out, err := exec.Command(filepath.Join(testkit.Root(), "scripts", "sandbox"), "status").Output()
		for line := range strings.Lines(string(out)) {
			if name, rest, _ := strings.Cut(line, " "); strings.TrimSpace(rest) == "DOWN" {
				names = append(names, name)
			}
		}
		return names, err
	}
	stopServices(t, pieces...)
	if names, err := down(); strings.Join(names, " ") != strings.Join(pieces, " ") || err == nil {
		t.Errorf("down are %q (%v), want %q and an error", names, err, pieces)
	}
	startServices(t, pieces...)
	if names, err := down(); len(names) != 0 || err != nil {
		t.Errorf("after the start %q are down (%v)", names, err)
	}
}

func sandbox(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "sandbox"), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("scripts/sandbox %v: %v\n%s", args, err, out)
	}
}

// stopServices stops parts of the shared sandbox. They run again at the end of the test.
func stopServices(t *testing.T, names ...string) {
	t.Helper()
	t.Cleanup(func() { startServices(t, names...) })
	sandbox(t, append([]string{"stop"}, names...)...)
}

// startServices starts them again and waits until they serve.
func startServices(t *testing.T, names ...string) {
	t.Helper()
	sandbox(t, append([]string{"start"}, names...)...)
}

// stopCell makes the database of Nova's cell unreachable for Nova's API, until startCell or the end of the test.
func stopCell(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { startCell(t) })
	sandbox(t, "cell-down")
}

func startCell(t *testing.T) {
	t.Helper()
	sandbox(t, "cell-up")
}
