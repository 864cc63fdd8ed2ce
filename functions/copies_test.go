package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestEveryAnswerHasItsRow has 64 clients call three copies, of which one is killed every now and then: an
// answer that arrived has its row.
func TestEveryAnswerHasItsRow(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	token := testkit.Token(t, "demo")
	env := daemonEnv(t, database)
	var mu sync.Mutex
	copies := make([]*testkit.Process, 3)
	for i := range copies {
		copies[i] = testkit.Spawn(t, env)
	}
	paths := []string{"/v1/stats", "/v1/requests?limit=1", "/v1/nothing", "/v1/stats?hours=0"}
	end := time.Now().Add(8 * time.Second)
	var answered, lost atomic.Int64
	ids := make([]map[string]int, 64)
	var clients sync.WaitGroup
	for c := range ids {
		ids[c] = map[string]int{}
		clients.Go(func() {
			for time.Now().Before(end) {
				mu.Lock()
				p := copies[rand.IntN(len(copies))]
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
	for time.Now().Before(end) {
		time.Sleep(time.Duration(300+rand.IntN(500)) * time.Millisecond)
		i := rand.IntN(len(copies))
		copies[i].Kill()
		kills++
		for line := range strings.Lines(copies[i].Log()) {
			if strings.Contains(line, `"ERROR"`) {
				t.Log(line)
			}
		}
		p := testkit.Spawn(t, env)
		mu.Lock()
		copies[i] = p
		mu.Unlock()
	}
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
	if missing+wrong > 0 || answered.Load() < 500 || kills < 5 {
		t.Errorf("%d answers have no row, %d another status", missing, wrong)
	}
}

// TestTenCopiesOneTick sends the same event twenty times at once, to ten processes.
func TestTenCopiesOneTick(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	project.Boot(t, "counted", 2)
	database := testkit.Database(t)
	hour := time.Now().UTC().Truncate(time.Hour).Add(time.Hour)
	testkit.SetClock(t, database, hour)
	sink := testkit.NewSink(t, nil)
	env := announcing(t, database, project, sink, "2h")
	copies := make([]*testkit.Process, 10)
	var all sync.WaitGroup
	for i := range copies {
		copies[i] = testkit.Spawn(t, env)
	}
	for _, p := range copies {
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
	if n := testkit.Scalar[int](t, conn, "select running from stats_hourly where hour = $1 and source = 'sampled'", hour); n != 2 {
		t.Errorf("%d running, want 2", n)
	}
	if n := testkit.Scalar[int](t, conn, "select attempts from jobs where kind = 'collect-stats' and done_at is not null"); n != 1 {
		t.Errorf("%d copies did the work", n)
	}
	if got := sink.IDs(); !slices.Equal(got, announced(hour.Add(-time.Hour), hour)) {
		t.Errorf("the sink got %v, want each of the hours once", got)
	}
}

// TestLaunchSurvivesKill sends one order twenty times at once to two copies, kills one of them at a random
// moment, and sends it again until it is finished: Nova then has exactly the servers of one order.
func TestLaunchSurvivesKill(t *testing.T) {
	t.Parallel()
	f := testkit.Sandbox(t)
	const count, rounds = 4, 3
	for round := range rounds {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			project := testkit.NewProject(t)
			token := project.Token(t)
			env := testkit.Env(t, testkit.Database(t), map[string]string{"FUNCTION_TARGET": "launch", "LAUNCH_CLAIM": "12s"})
			copies := []*testkit.Process{testkit.Spawn(t, env), testkit.Spawn(t, env)}
			id := uuid.NewString()
			order := fmt.Sprintf(`{"id":%q,"name":"survivor","flavor":%q,"image":%q,"networks":[%q],"count":%d}`, id, f.FlavorID, f.ImageID, f.NetworkID, count)
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					_, _ = copies[i%2].As(token).Try(t, "POST", "/v1/launch", order, "Content-Type", "application/json")
				})
			}
			moment := time.Duration(300+rand.IntN(1500)) * time.Millisecond
			time.Sleep(moment)
			copies[round%2].Kill()
			all.Wait()
			survivor := copies[(round+1)%2].As(token)
			testkit.Eventually(t, 4*time.Minute, "the order is done", func() bool {
				var got struct{ Status string }
				survivor.Post(t, "/v1/launch", order).JSON(t, &got)
				if got.Status == "running" {
					survivor.Get(t, "/v1/launch/"+id).JSON(t, &got)
					time.Sleep(time.Second)
				}
				return got.Status == "done"
			})
			made := project.Servers(t)
			names := map[string]bool{}
			for _, s := range made {
				names[s.Name] = true
			}
			if len(made) != count || len(names) != count {
				t.Errorf("killed after %s: Nova has %d servers with %d names, want %d", moment, len(made), len(names), count)
			}
		})
	}
}

// TestCollectSurvivesKill kills the copy that counts, in the middle of it: once its claim has ended another copy
// counts the same hours, each once.
func TestCollectSurvivesKill(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	nova, calls := testkit.Through(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(*http.Request) { time.Sleep(time.Second) })
	database := testkit.Database(t)
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "collector")
	env["FUNCTION_TARGET"], env["ALLOWED_PROJECTS"], env["STATS_BACKFILL"], env["EVENT_TIMEOUT"] = "collect-stats", project.ID, "2h", "10s"
	env = testkit.Env(t, database, env)
	testkit.SetClock(t, database, time.Now().Truncate(time.Hour).Add(90*time.Minute)) // no hour turns meanwhile
	first, second := testkit.Spawn(t, env), testkit.Spawn(t, env)
	var all sync.WaitGroup
	all.Go(func() { _, _ = first.TryTick(t, "collect-stats") })
	testkit.Eventually(t, 20*time.Second, "the first copy is at Nova", func() bool { return calls.Load() > 0 })
	first.Kill()
	all.Wait()
	conn := testkit.Connect(t, database)
	rows := func() int { return testkit.Scalar[int](t, conn, "select count(*)::int from stats_hourly") }
	if n := rows(); n != 0 {
		t.Fatalf("%d rows before the kill: it came too late to prove anything", n)
	}
	testkit.Eventually(t, time.Minute, "another copy has counted", func() bool { return second.Tick(t, "collect-stats").Status == 204 && rows() > 0 })
	if n := rows(); n != 2 {
		t.Errorf("%d rows, want one for each of two hours", n)
	}
	if n := testkit.Scalar[int](t, conn, "select attempts from jobs where done_at is not null"); n != 2 {
		t.Errorf("the job took %d attempts, want 2", n)
	}
}
