package process_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongEveryAnswerHasItsRow has 64 clients call three replicas, while one after the other is killed: an
// answer that arrived has its row.
func TestLongEveryAnswerHasItsRow(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	token := testkit.Token(t, "demo")
	env := testkit.DaemonEnv(t, database)
	var mu sync.Mutex
	replicas := make([]*testkit.Process, 3)
	for i := range replicas {
		replicas[i] = testkit.Spawn(t, env)
	}
	paths := []string{"/v1/stats", "/v1/requests?limit=1", "/v1/nothing", "/v1/stats?hours=0"}
	var answered, lost atomic.Int64
	var done atomic.Bool
	ids := make([]map[string]int, 64)
	var clients sync.WaitGroup
	for c := range ids {
		ids[c] = map[string]int{}
		clients.Go(func() {
			for !done.Load() {
				mu.Lock()
				p := replicas[rand.IntN(len(replicas))]
				mu.Unlock()
				who := []string{token, "garbage", ""}[rand.IntN(3)]
				a, err := p.As(who).Try(t, "GET", paths[rand.IntN(len(paths))], "")
				if err != nil {
					lost.Add(1)
					time.Sleep(10 * time.Millisecond)
					continue
				}
				answered.Add(1)
				ids[c][a.Header.Get("X-Request-Id")] = a.Status
			}
		})
	}
	kills := 0
	// A busy machine gets there later, and shows the same.
	for last := time.Now().Add(3 * time.Minute); time.Now().Before(last) && (answered.Load() < 500 || kills < 10); {
		time.Sleep(time.Duration(300+rand.IntN(500)) * time.Millisecond)
		i := rand.IntN(len(replicas))
		replicas[i].Kill()
		kills++
		for line := range strings.Lines(replicas[i].Log()) {
			if strings.Contains(line, `"ERROR"`) {
				t.Log(line)
			}
		}
		p := testkit.Spawn(t, env)
		mu.Lock()
		replicas[i] = p
		mu.Unlock()
	}
	done.Store(true)
	clients.Wait()

	conn := testkit.Connect(t, database)
	missing, wrong := 0, 0
	rows := testkit.Pairs(t, conn, "select request_id, status::int from requests")
	for _, mine := range ids {
		for id, status := range mine {
			got, ok := rows[id]
			switch {
			case !ok && status == 503: // the one answer that says there is no row
			case !ok:
				missing++
			case got != status:
				wrong++
			}
		}
	}
	t.Logf("%d answers, %d requests without one, %d kills", answered.Load(), lost.Load(), kills)
	if missing+wrong > 0 {
		t.Errorf("%d answers have no row, %d another status", missing, wrong)
	}
	if answered.Load() < 500 || kills < 10 {
		t.Error("too few answers and kills to show anything")
	}
}

// TestLongTenReplicasOneTick sends the same event twenty times at once, to ten processes.
func TestLongTenReplicasOneTick(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	project.Boot(t, "counted", 2)
	database := testkit.Database(t)
	hour := time.Now().UTC().Truncate(time.Hour).Add(time.Hour)
	testkit.SetClock(t, database, hour)
	env := testkit.Env(t, database, map[string]string{
		"FUNCTION_TARGET": "collect-stats", "ALLOWED_PROJECTS": project.ID, "STATS_BACKFILL": "2h",
	})
	replicas := make([]*testkit.Process, 10)
	var all sync.WaitGroup
	for i := range replicas {
		replicas[i] = testkit.Spawn(t, env)
	}
	for _, p := range replicas {
		for range 2 {
			all.Go(func() {
				if a := p.Tick(t, "collect-stats"); a.Status != 204 {
					t.Errorf("got %d %s", a.Status, a.Body)
				}
			})
		}
	}
	all.Wait()
	conn := testkit.Connect(t, database)
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from stats_hourly"); n != 2 {
		t.Errorf("%d rows, want one for each of two hours", n)
	}
	if n := testkit.Scalar[int](t, conn, "select running from stats_hourly where hour = $1 and source = 'sampled'",
		hour); n != 2 {
		t.Errorf("%d running, want 2", n)
	}
	if n := testkit.Scalar[int](t, conn,
		"select attempts from jobs where kind = 'collect-stats' and done_at is not null"); n != 1 {
		t.Errorf("%d replicas did the work", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events"); n != 2 {
		t.Errorf("%d events, want one for each of two hours", n)
	}
}
