package process_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// tracked has servers launched by the function launch, and a replica of poll-instances that has seen them run.
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
		"FUNCTION_TARGET": "poll-instances", "OS_CLOUD": account, "POLL_FOLLOW": "0s", "POLL_UNKNOWN_AFTER": "5s",
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
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Second) {
				if status := poll(); status != 503 {
					t.Errorf("got %d, want 503", status)
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
