package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// daemonEnv is a daemon whose own ticks only count one project, so that they do not keep the sandbox busy.
func daemonEnv(t *testing.T, database string) map[string]string {
	t.Helper()
	return testkit.Env(t, database, map[string]string{"OS_CLOUD": "demo", "STATS_BACKFILL": "1h"})
}

// TestOneByOne runs every function in a process of its own, as Knative does: each serves its own paths, at the
// same places as the daemon does.
func TestOneByOne(t *testing.T) {
	t.Parallel()
	token := testkit.Token(t, "demo")
	paths := map[string]string{
		"resources": "/v1/resources", "servers": "/v1/servers", "stats": "/v1/stats", "launch": "/v1/launch/" + uuid.NewString(),
	}
	daemon := testkit.Spawn(t, daemonEnv(t, testkit.Database(t)))
	for target := range paths {
		p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{"FUNCTION_TARGET": target, "K_SERVICE": target}))
		for name, path := range paths {
			want := daemon.As(token).Get(t, path).Status
			if name != target {
				want = 404
			}
			if got := p.As(token).Get(t, path).Status; got != want {
				t.Errorf("%s answers %s with %d, want %d", target, path, got, want)
			}
		}
		var status struct{ Function string }
		p.Get(t, "/v1/status").JSON(t, &status)
		if status.Function != target {
			t.Errorf("%s says that it is %q", target, status.Function)
		}
		if code := p.Terminate(t, 10*time.Second); code != 0 {
			t.Errorf("%s ended with %d", target, code)
		}
		for line := range strings.Lines(p.Log()) {
			if !strings.HasPrefix(line, "{") {
				t.Errorf("%s printed %q: every line is to be JSON", target, line)
			}
		}
	}
}

// slowNova stands before the real Nova and answers after a while: for requests that are in flight at a moment.
func slowNova(t *testing.T, delay time.Duration) (env map[string]string, calls *atomic.Int64) {
	t.Helper()
	nova, calls := testkit.Through(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(*http.Request) { time.Sleep(delay) })
	return testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo"), calls
}

// TestSIGTERMDrains asks a copy to end while requests are on their way: each is answered, and has its row.
func TestSIGTERMDrains(t *testing.T) {
	t.Parallel()
	token := testkit.Token(t, "demo")
	for _, target := range []string{"servers", ""} {
		t.Run("FUNCTION_TARGET="+target, func(t *testing.T) {
			t.Parallel()
			database := testkit.Database(t)
			env, calls := slowNova(t, 1500*time.Millisecond)
			env["FUNCTION_TARGET"], env["STATS_BACKFILL"] = target, "1h"
			p := testkit.Spawn(t, testkit.Env(t, database, env))
			answers := make([]testkit.Answer, 8)
			var all sync.WaitGroup
			for i := range answers {
				all.Go(func() { answers[i] = p.As(token).Get(t, "/v1/servers?limit=1") })
			}
			testkit.Eventually(t, 10*time.Second, "all requests are at Nova", func() bool { return calls.Load() >= int64(len(answers)) })
			if code := p.Terminate(t, 20*time.Second); code != 0 {
				t.Errorf("it ended with %d: %s", code, p.Log())
			}
			all.Wait()
			conn := testkit.Connect(t, database)
			for _, a := range answers {
				n := testkit.Scalar[int](t, conn, "select count(*)::int from requests where request_id = $1 and status = 200", a.Header.Get("X-Request-Id"))
				if a.Status != 200 || n != 1 {
					t.Errorf("got %d with %d rows", a.Status, n)
				}
			}
		})
	}
}

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

// TestPostgresStops answers 503 while it is away, sends nothing to OpenStack, and recovers by itself.
func TestPostgresStops(t *testing.T) {
	t.Parallel()
	cluster := testkit.NewCluster(t)
	project := testkit.NewProject(t)
	env, calls := slowNova(t, 0)
	env["STATS_BACKFILL"] = "1h"
	p := testkit.Spawn(t, testkit.Env(t, cluster.URL, env))
	app := p.As(project.Token(t))
	if a := app.Get(t, "/v1/servers"); a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	f := testkit.Sandbox(t)
	order := fmt.Sprintf(`{"name":"x","flavor":%q,"image":%q,"networks":[%q]}`, f.FlavorID, f.ImageID, f.NetworkID)
	for round := range 3 {
		time.Sleep(time.Second) // the daemon's own first tick is over
		cluster.Stop(t)
		before := calls.Load()
		for _, a := range []testkit.Answer{app.Post(t, "/v1/launch", order), app.Get(t, "/v1/servers"), app.Get(t, "/v1/stats"), app.Get(t, "/v1/nothing"), p.Get(t, "/v1/stats")} {
			if a.Status != 503 || a.Header.Get("Retry-After") == "" {
				t.Errorf("round %d: got %d %v %s, want 503 with Retry-After", round, a.Status, a.Header, a.Body)
			}
		}
		if a := p.Get(t, "/v1/status"); a.Status != 200 || !strings.Contains(string(a.Body), `"postgres":{"reachable":false`) {
			t.Errorf("status: got %d %s", a.Status, a.Body)
		}
		if n := calls.Load() - before; n != 0 {
			t.Errorf("round %d: %d calls reached Nova", round, n)
		}
		cluster.Start(t)
		began := time.Now()
		testkit.Eventually(t, 5*time.Second, "it answers again", func() bool { return app.Get(t, "/v1/servers").Status == 200 })
		t.Logf("round %d: back after %s", round, time.Since(began))
	}
	if n := len(project.Servers(t)); n != 0 {
		t.Errorf("Nova has %d servers", n)
	}
}

// TestKeystoneAway answers 503, and never 401, for a token that it does not know yet.
func TestKeystoneAway(t *testing.T) {
	t.Parallel()
	keystone := testkit.Redirect(t)
	env := keystone.Env(t, "demo")
	env["FUNCTION_TARGET"] = "stats"
	p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), env))
	known, unknown := testkit.Token(t, "demo"), testkit.Token(t, "alt")
	if a := p.As(known).Get(t, "/v1/stats"); a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	keystone.Close()
	if a := p.As(unknown).Get(t, "/v1/stats"); a.Status != 503 || a.Header.Get("Retry-After") == "" {
		t.Errorf("a token that is not known: got %d %s", a.Status, a.Body)
	}
	if a := p.As(known).Get(t, "/v1/stats"); a.Status != 200 {
		t.Errorf("one that is, within a minute: got %d %s", a.Status, a.Body)
	}
}

// TestTokens that are over, and projects that are not served.
func TestTokens(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	good, revoked, expired := p.Token(t), p.Token(t), p.ExpiredToken(t)
	p.Revoke(t, revoked)
	const path = "/v1/stats"
	for name, env := range map[string]map[string]string{
		"another project": {"ALLOWED_PROJECTS": "p1,p2"}, "another domain": {"ALLOWED_DOMAINS": "d1"},
		"own project in another domain": {"ALLOWED_PROJECTS": p.ID, "ALLOWED_DOMAINS": "d1"},
	} {
		env["FUNCTION_TARGET"] = "stats"
		database := testkit.Database(t)
		c := testkit.Spawn(t, testkit.Env(t, database, env))
		a := c.As(good).Get(t, path)
		if a.Status != 403 {
			t.Errorf("%s: got %d %s, want 403", name, a.Status, a.Body)
		}
		user := testkit.Scalar[string](t, testkit.Connect(t, database), "select user_id from requests where request_id = $1", a.Header.Get("X-Request-Id"))
		if user != p.UserID {
			t.Errorf("%s: the row's user is %q", name, user)
		}
	}
	c := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{
		"FUNCTION_TARGET": "stats", "ALLOWED_PROJECTS": "p1," + p.ID, "ALLOWED_DOMAINS": p.DomainID, "TOKEN_CACHE_TTL": "1s",
	}))
	for name, tc := range map[string]struct {
		token string
		want  int
	}{"good": {good, 200}, "revoked": {revoked, 401}, "expired": {expired, 401}, "garbage": {"x", 401}, "8 KiB": {strings.Repeat("x", 8193), 401}} {
		if a := c.As(tc.token).Get(t, path); a.Status != tc.want || tc.want == 401 && !strings.HasPrefix(a.Header.Get("Www-Authenticate"), "Keystone uri=") {
			t.Errorf("%s: got %d %v %s, want %d", name, a.Status, a.Header, a.Body, tc.want)
		}
	}
	if a := c.Get(t, path, "X-Auth-Token", good, "X-Auth-Token", good); a.Status != 401 {
		t.Errorf("two tokens: got %d", a.Status)
	}
	p.Revoke(t, good)
	testkit.Eventually(t, 5*time.Second, "a token revoked meanwhile is refused", func() bool { return c.As(good).Get(t, path).Status == 401 })
}

// TestTenCopiesOneTick sends the same event ten times at once, to ten processes.
func TestTenCopiesOneTick(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	project.Boot(t, "counted", 2)
	database := testkit.Database(t)
	hour := time.Now().UTC().Truncate(time.Hour).Add(time.Hour)
	testkit.SetClock(t, database, hour)
	env := testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "collect-stats", "ALLOWED_PROJECTS": project.ID, "STATS_BACKFILL": "2h"})
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
	if n := testkit.Scalar[int](t, conn, "select attempts from jobs where done_at is not null"); n != 1 {
		t.Errorf("%d copies did the work", n)
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

// TestSecretsAreNowhere looks for what must not show, in the logs and in the database of a whole run.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	f := testkit.Sandbox(t)
	project := testkit.NewProject(t)
	token := project.Token(t)
	database := testkit.Database(t)
	env := testkit.RedirectTo(t, nil).Env(t, "collector")
	env["LOG_LEVEL"], env["STATS_BACKFILL"], env["EVENT_KEY"] = "DEBUG", "1h", "canary-event-key"
	p := testkit.Spawn(t, testkit.Env(t, database, env))
	app := p.As(token)
	order := `{"name":"x","flavor":%q,"image":%q,"networks":[%q],"user_data":"canary-user-data","key_name":%q}`
	app.Post(t, "/v1/launch", fmt.Sprintf(order, f.FlavorID, f.ImageID, f.NetworkID, ""))
	app.Post(t, "/v1/launch", fmt.Sprintf(order, f.FlavorID, f.ImageID, f.NetworkID, "no-such-key"))
	app.Post(t, "/v1/launch", `{"user_data":"canary-user-data","name":17}`)
	app.Get(t, "/v1/servers?name=canary-query")
	app.Get(t, "/v1/resources")
	p.As("canary-token").Get(t, "/v1/stats?token=canary-query")
	p.Tick(t, "collect-stats")
	p.Terminate(t, 30*time.Second)
	found := p.Log() + testkit.Dump(t, database)
	for _, secret := range []string{"canary", token, env["OS_PASSWORD"] + `"`} {
		if i := strings.Index(found, secret); i >= 0 {
			t.Errorf("%.12s… shows in %q", secret, found[max(0, i-100):min(len(found), i+100)])
		}
	}
	if !strings.Contains(p.Log(), token[:0]+"request_id") {
		t.Error("the log is empty, so this proves nothing")
	}
}

// TestWrongConfiguration ends at once, with the variable and what it must be in one line.
func TestWrongConfiguration(t *testing.T) {
	t.Parallel()
	good := daemonEnv(t, "postgres://nobody@localhost:1/x")
	for want, change := range map[string]map[string]string{
		"FUNCTION_TARGET is \"nope\": it must be one of collect-stats, launch, resources, servers, stats": {"FUNCTION_TARGET": "nope"},
		"DATABASE_URL is empty":              {"DATABASE_URL": ""},
		"DATABASE_URL is not a Postgres URL": {"DATABASE_URL": "postgres://x:canary@:bad/"},
		"OS_AUTH_URL is \"\"":                {"OS_CLOUD": ""},
		"OS_AUTH_URL is \"keystone\"":        {"OS_CLOUD": "", "OS_AUTH_URL": "keystone"},
		"OS_CLOUD is \"nope\"":               {"OS_CLOUD": "nope"},
		"no service account":                 {"OS_CLOUD": "", "OS_AUTH_URL": "http://127.0.0.1:1/v3"},
		"LAUNCH_CLAIM is 1s":                 {"LAUNCH_CLAIM": "1s"},
		"REQUEST_TIMEOUT is 0s":              {"REQUEST_TIMEOUT": "0s"},
		"TOKEN_CACHE_TTL is 1h0m0s":          {"TOKEN_CACHE_TTL": "1h"},
		"STATS_BACKFILL":                     {"STATS_BACKFILL": "a day"},
	} {
		env := maps.Clone(good)
		maps.Copy(env, change)
		code, out := testkit.Run(t, env)
		if code != 1 || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 || strings.Contains(out, "canary") {
			t.Errorf("%v: exit %d, %q, want one line with %q", change, code, out, want)
		}
	}
}

// TestMigrateAtOnce runs it from four processes on an empty database; functions that came too early say so.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	database := testkit.EmptyDatabase(t)
	early := testkit.Spawn(t, testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "stats"}))
	a := early.As(testkit.Token(t, "demo")).Get(t, "/v1/stats")
	if a.Status != 503 || !strings.Contains(string(a.Body), "run migrate") {
		t.Errorf("before: got %d %s", a.Status, a.Body)
	}
	codes := make([]int, 4)
	var all sync.WaitGroup
	for i := range codes {
		all.Go(func() { codes[i], _ = testkit.Run(t, map[string]string{"DATABASE_URL": database}, "migrate") })
	}
	all.Wait()
	if slices.Max(codes) != 0 {
		t.Errorf("they ended with %v", codes)
	}
	if a := early.As(testkit.Token(t, "demo")).Get(t, "/v1/stats"); a.Status != 200 {
		t.Errorf("after: got %d %s", a.Status, a.Body)
	}
}
