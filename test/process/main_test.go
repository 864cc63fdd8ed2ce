package process_test

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/functions/callbacks"
	"github.com/cloudfn/cloudfn/functions/console"
	"github.com/cloudfn/cloudfn/functions/launch"
	"github.com/cloudfn/cloudfn/functions/servers"
	"github.com/cloudfn/cloudfn/functions/stats"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv("CLOUDFN_TEST_GATEWAY") != "" { // TestGateway runs this again: as cloudfn, but with names of its own
		net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: loopbackDNS}
		os.Exit(run.Main(run.Texts{}, callbacks.Function, console.Function, launch.Function, servers.Function,
			stats.Function))
	}
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// TestAFunctionWarmsUp: by the time that Knative lets the first request in, a replica is connected to Postgres and has
// checked Keystone once.
func TestAFunctionWarmsUp(t *testing.T) {
	t.Parallel()
	database := testkit.EmptyDatabase(t) // at first without the schema: then OpenStack is not called
	keystone, calls := testkit.Intercept(t, "http://127.0.0.1:1", func(*http.Request) {})
	env := testkit.Env(t, database, map[string]string{
		"FUNCTION_TARGET": "servers", "OS_CLOUD": "", "OS_AUTH_URL": keystone + "/v3",
	})
	conn := testkit.Connect(t, database)
	connected := func() bool {
		return testkit.Scalar[int](t, conn,
			"select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()") > 0
	}
	early := testkit.Spawn(t, env)
	testkit.Eventually(t, 5*time.Second, "the replica is connected to Postgres", connected)
	early.Terminate(t, 5*time.Second)
	if n := calls.Load(); n != 0 {
		t.Errorf("without the schema Keystone was called %d times", n)
	}
	if code, out := testkit.Run(t, env, "migrate"); code != 0 {
		t.Fatal(out)
	}
	testkit.Spawn(t, env)
	testkit.Eventually(t, 5*time.Second, "the replica is connected, and has called Keystone", func() bool {
		return connected() && calls.Load() > 0
	})
}

// TestOneByOne runs every function in a process of its own, as Knative does: each serves its own paths, at the same
// places and with the same answers as the daemon does, and no other function's.
func TestOneByOne(t *testing.T) {
	t.Parallel()
	token, database := testkit.Token(t, "demo"), testkit.Database(t)
	daemon := testkit.Spawn(t, testkit.DaemonEnv(t, database)).As(token)
	functions := testkit.Describe(t).Functions
	for _, f := range functions {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			p := testkit.Spawn(t, testkit.Env(t, database, map[string]string{
				"FUNCTION_TARGET": f.Name, "K_SERVICE": f.Name, "CONSOLE_UPSTREAM": "http://{function}.invalid",
				"WAKE_URL": "http://{function}.invalid",
			}))
			for _, other := range functions {
				method, path := firstRoute(other)
				got := p.As(token).Do(t, method, path, "")
				isServed := !strings.Contains(string(got.Body), "there is nothing at this path")
				if isServed != (other.Name == f.Name) {
					t.Errorf("%s %s of %s: got %d %s", method, path, other.Name, got.Status, got.Body)
				}
				if want := daemon.Do(t, method, path, "").Status; isServed && got.Status != want {
					t.Errorf("%s %s: got %d, the daemon answers %d", method, path, got.Status, want)
				}
			}
			resp, err := http.Post(p.URL, "application/json", nil) // where a PingSource posts
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if isEvent := resp.StatusCode == http.StatusBadRequest; isEvent != (f.Kind == "event") {
				t.Errorf("POST / without an event: got %d from a function of kind %s", resp.StatusCode, f.Kind)
			}
			var status struct{ Function string }
			p.Get(t, "/v1/status").JSON(t, &status)
			if status.Function != f.Name {
				t.Errorf("it reports that it is %q", status.Function)
			}
			if code := p.Terminate(t, 10*time.Second); code != 0 {
				t.Errorf("it ended with %d", code)
			}
			for line := range strings.Lines(p.Log()) {
				if !strings.HasPrefix(line, "{") {
					t.Errorf("it printed %q: every line must be JSON", line)
				}
			}
		})
	}
}

// firstRoute returns a function's first route that needs no id, or the first one with an id that no object has: a GET,
// or what an event function takes.
func firstRoute(f run.Declaration) (method, path string) {
	first := ""
	for _, route := range f.Routes {
		method, path, _ := strings.Cut(strings.ReplaceAll(route, "{$}", ""), " ")
		hasID := strings.Contains(path, "{")
		if path = wildcard.ReplaceAllString(path, uuid.Nil.String()); method != http.MethodGet && f.Kind == "http" {
			continue
		}
		if !hasID {
			return method, path
		}
		if first == "" {
			first = path
		}
	}
	return http.MethodGet, first
}

var wildcard = regexp.MustCompile(`\{[^}]*\}`)

// slowNova stands before the real Nova and answers after a while: for requests that are in flight at a moment.
func slowNova(t *testing.T, delay time.Duration) (env map[string]string, calls *atomic.Int64) {
	t.Helper()
	nova, calls := testkit.Intercept(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(*http.Request) {
		time.Sleep(delay)
	})
	return testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo"), calls
}

// TestSIGTERMDrains has a replica end while requests are on their way: each is answered, and has its row.
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
			testkit.Eventually(t, 10*time.Second, "all requests are at Nova", func() bool {
				return calls.Load() >= int64(len(answers))
			})
			if code := p.Terminate(t, 20*time.Second); code != 0 {
				t.Errorf("it ended with %d: %s", code, p.Log())
			}
			all.Wait()
			conn := testkit.Connect(t, database)
			for _, a := range answers {
				n := testkit.Scalar[int](t, conn,
					"select count(*)::int from requests where request_id = $1 and status = 200", a.Header.Get("X-Request-Id"))
				if a.Status != 200 || n != 1 {
					t.Errorf("got %d with %d rows", a.Status, n)
				}
			}
		})
	}
}

// TestLongSecretsAreNowhere looks for what must not show, in the logs and in the database of a whole run.
func TestLongSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	f := testkit.Sandbox(t)
	project := testkit.NewProject(t)
	token := project.Token(t)
	database := testkit.Database(t)
	env := testkit.RedirectTo(t, nil).Env(t, "collector")
	env["LOG_LEVEL"], env["STATS_BACKFILL"], env["EVENT_KEY"] = "DEBUG", "1h", "canary-event-key"
	env["K_SINK"], env["K_CE_OVERRIDES"] = "http://canary:canary@127.0.0.1:1/x?canary",
		`{"extensions":{"key":"canary"}}`
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

// TestWrongConfiguration ends immediately, with the variable and what it must be in one line.
func TestWrongConfiguration(t *testing.T) {
	t.Parallel()
	good := testkit.DaemonEnv(t, "postgres://nobody@localhost:1/x")
	for want, change := range map[string]map[string]string{
		"FUNCTION_TARGET is \"nope\": it must be one of agents, callbacks, ": {"FUNCTION_TARGET": "nope"},
		"DATABASE_URL is empty":              {"DATABASE_URL": ""},
		"DATABASE_URL is not a Postgres URL": {"DATABASE_URL": "postgres://x:canary@:bad/"},
		"OS_AUTH_URL is \"\"":                {"OS_CLOUD": ""},
		"OS_AUTH_URL is \"keystone\"":        {"OS_CLOUD": "", "OS_AUTH_URL": "keystone"},
		"OS_CLOUD is \"nope\"":               {"OS_CLOUD": "nope"},
		"no service account":                 {"OS_CLOUD": "", "OS_AUTH_URL": "http://127.0.0.1:1/v3"},
		"REQUEST_TIMEOUT is 0s":              {"REQUEST_TIMEOUT": "0s"},
		"STATS_BACKFILL":                     {"STATS_BACKFILL": "a day"},
		"EVENT_KEY is empty: collect-stats":  {"FUNCTION_TARGET": "collect-stats", "EVENT_KEY": ""},
		"WAKE_URL must be an http or https":  {"WAKE_URL": "http://x:canary@{function}"},
		"K_SINK is not an http or https URL": {"K_SINK": "broker/canary"},
		"K_CE_OVERRIDES is not JSON":         {"K_CE_OVERRIDES": `{"extensions":{"key":["canary"]}}`},
		"K_CA_CERTS holds no certificate":    {"K_CA_CERTS": "canary"},
		"CONNECTION_PUBLIC_KEY is empty":     {"CONNECTION_PUBLIC_KEY": ""},
		"CONNECTION_PUBLIC_KEY is the key":   {"CONNECTION_PUBLIC_KEY": testkit.SealPublicKey},
		"CONNECTION_PRIVATE_KEY is empty":    {"CONNECTION_PRIVATE_KEY": ""},
		"CONNECTION_PRIVATE_KEY does not":    {"CONNECTION_PRIVATE_KEY": "canary"},
		"MANAGED_PUBLIC_KEY is empty":        {"MANAGED_PUBLIC_KEY": ""},
		"CONNECTION_CLOUDS must be":          {"CONNECTION_CLOUDS": "https://x:canary@keystone"},
		"TRUSTEE_USER_ID is":                 {"TRUSTEE_USER_ID": "the trustee"},
		"AGENT_URL must be":                  {"AGENT_URL": "agents/canary"},
		"AGENT_TOKEN_TTL is 30s":             {"AGENT_TOKEN_TTL": "30s"},
		"CONSOLE_UPSTREAM must be":           {"CONSOLE_UPSTREAM": "http://x:canary@{function}"},
		"CONSOLE_UPSTREAM is empty":          {"FUNCTION_TARGET": "console"},
		"clock: WAKE_URL is empty":           {"FUNCTION_TARGET": "clock"},
	} {
		env := maps.Clone(good)
		maps.Copy(env, change)
		code, out := testkit.Run(t, env)
		if code != 1 || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 ||
			strings.Contains(out, "canary") {
			t.Errorf("%v: exit %d, %q, want one line with %q", change, code, out, want)
		}
	}
}

// TestMigrateConcurrently runs it from four processes on an empty database; functions that came too early say so.
func TestMigrateConcurrently(t *testing.T) {
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

// initLine is what Go prints of a package's initialization with GODEBUG=inittrace=1.
var initLine = regexp.MustCompile(`(?m)^init (\S+) @.* (\d+) bytes, \d+ allocs$`)

// TestInitIsSmall: no package of ours takes much memory before main runs, because every process holds it, whichever
// function it serves. A regular expression with a bounded repetition such as {0,254} takes a quarter of a megabyte.
func TestInitIsSmall(t *testing.T) {
	t.Parallel()
	const limit = 128 << 10
	_, out := testkit.Run(t, map[string]string{"GODEBUG": "inittrace=1"}, "no-such-command")
	lines, ours := initLine.FindAllStringSubmatch(out, -1), 0
	for _, line := range lines {
		if !strings.HasPrefix(line[1], "github.com/cloudfn/") {
			continue
		}
		ours++
		if n, err := strconv.Atoi(line[2]); err != nil || n > limit {
			t.Errorf("%s takes %d bytes, want %d at most: %v", line[1], n, limit, err)
		}
	}
	if ours == 0 {
		t.Errorf("no package of ours among %d: %s", len(lines), out)
	}
}
