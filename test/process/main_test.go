package process_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
		os.Exit(run.Main(run.Texts{}, callbacks.Function, console.Function, launch.Function, servers.Function, stats.Function))
	}
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// TestAFunctionWarmsUp: by the time that Knative lets the first request in, a copy is connected to Postgres and has asked
// for Keystone once.
func TestAFunctionWarmsUp(t *testing.T) {
	t.Parallel()
	database := testkit.EmptyDatabase(t) // at first without the schema: then OpenStack is not asked
	keystone, calls := testkit.Through(t, "http://127.0.0.1:1", func(*http.Request) {})
	env := testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "servers", "OS_CLOUD": "", "OS_AUTH_URL": keystone + "/v3"})
	conn := testkit.Connect(t, database)
	connected := func() bool {
		return testkit.Scalar[int](t, conn, "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()") > 0
	}
	early := testkit.Spawn(t, env)
	testkit.Eventually(t, 5*time.Second, "the copy is connected to Postgres", connected)
	early.Terminate(t, 5*time.Second)
	if n := calls.Load(); n != 0 {
		t.Errorf("without the schema Keystone was asked %d times", n)
	}
	if code, out := testkit.Run(t, env, "migrate"); code != 0 {
		t.Fatal(out)
	}
	testkit.Spawn(t, env)
	testkit.Eventually(t, 5*time.Second, "the copy is connected, and has asked for Keystone", func() bool { return connected() && calls.Load() > 0 })
}

// TestOneByOne runs every function in a process of its own, as Knative does: each serves its own paths, at the
// same places as the daemon does.
func TestOneByOne(t *testing.T) {
	t.Parallel()
	token := testkit.Token(t, "demo")
	paths := map[string]string{
		"resources": "/v1/resources", "servers": "/v1/servers", "stats": "/v1/stats", "launch": "/v1/launch/" + uuid.NewString(), "callbacks": "/v1/callbacks",
		"connections": "/v1/connections", "agents": "/v1/agents/" + uuid.NewString() + "/bundle", "console": "/console/",
	}
	daemon := testkit.Spawn(t, testkit.DaemonEnv(t, testkit.Database(t)))
	for target := range paths {
		p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{
			"FUNCTION_TARGET": target, "K_SERVICE": target, "CONSOLE_UPSTREAM": "http://{function}.invalid",
		}))
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

// loopbackDNS has 127.0.0.1 for every name, as a cluster's DNS has an address for every function.
func loopbackDNS(context.Context, string, string) (net.Conn, error) {
	ours, server := net.Pipe()
	go func() {
		defer server.Close()
		query := make([]byte, 512)
		if n, err := server.Read(query); err != nil || n < 2+12+5 {
			return
		}
		query = query[2:]                              // its length comes first, as over TCP
		end := 12 + bytes.IndexByte(query[12:], 0) + 5 // behind the header, the name, its type and class
		reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
		if query[end-3] == 1 { // type A
			reply[7] = 1 // answer: the same name, A, IN, 60 s, 4 bytes
			reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1)
		}
		_, _ = server.Write(append([]byte{0, byte(len(reply))}, reply...))
	}()
	return ours, nil
}

// spawnGateway starts a gateway before a daemon, in a process of its own, and gives a client for it.
func spawnGateway(t *testing.T, daemon *testkit.Process) (*testkit.Client, *exec.Cmd, *bytes.Buffer) {
	t.Helper()
	return spawnSelf(t, map[string]string{"GATEWAY_UPSTREAM": upstream(daemon.URL)}, "gateway")
}

// upstream is where a process that spawnSelf has started finds all functions at one address.
func upstream(url string) string { return strings.Replace(url, "127.0.0.1", "{function}.fn.test", 1) }

// spawnSelf starts what passes requests on, in a process of its own to which every name is this machine, and gives a client for it.
func spawnSelf(t *testing.T, env map[string]string, args ...string) (*testkit.Client, *exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	port := testkit.FreePort(t)
	cmd, logs := exec.Command(self, args...), &bytes.Buffer{}
	cmd.Env = []string{"CLOUDFN_TEST_GATEWAY=1", "HOST=127.0.0.1", "PORT=" + port}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = logs, logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	app := &testkit.Client{URL: "http://127.0.0.1:" + port}
	testkit.Eventually(t, 10*time.Second, "it serves", func() bool {
		_, err := app.Try(t, "GET", "/healthz", "")
		return err == nil
	})
	return app, cmd, logs
}

// TestGateway answers as what is behind it does, and on SIGTERM finishes what it has begun.
func TestGateway(t *testing.T) {
	t.Parallel()
	token := testkit.Token(t, "demo")
	database := testkit.Database(t)
	env, calls := slowNova(t, 1500*time.Millisecond)
	env["STATS_BACKFILL"] = "1h"
	gateway, cmd, logs := spawnGateway(t, testkit.Spawn(t, testkit.Env(t, database, env)))
	for path, want := range map[string]int{
		"/v1/stats": 200, "/v1/requests?limit=0": 400, "/v1/launch/" + uuid.NewString(): 404, "/v1/status": 200, "/v1/openapi.yaml": 200,
		"/v1//servers": 404, "/v1/nothing": 404, "/": 302, "/console/": 200, "/nothing": 404,
	} {
		if a := gateway.As(token).Get(t, path); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", path, a.Status, a.Body, want)
		}
	}
	if a := gateway.As(token).Post(t, "/v1/launch", strings.Repeat(" ", 16<<20)); a.Status != 413 {
		t.Errorf("a large body: got %d %s", a.Status, a.Body)
	}
	answers := make([]testkit.Answer, 8)
	before := calls.Load()
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = gateway.As(token).Get(t, "/v1/servers?limit=1") })
	}
	testkit.Eventually(t, 10*time.Second, "all requests are at Nova", func() bool { return calls.Load() >= before+int64(len(answers)) })
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, logs)
	}
	all.Wait()
	conn := testkit.Connect(t, database)
	for _, a := range answers {
		id := a.Header.Get("X-Request-Id")
		n := testkit.Scalar[int](t, conn, "select count(*)::int from requests where request_id = $1 and status = 200", id)
		if a.Status != 200 || n != 1 || strings.Count(logs.String(), id) != 1 {
			t.Errorf("got %d with %d rows, and in the gateway's log: %s", a.Status, n, logs)
		}
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
	env["K_SINK"], env["K_CE_OVERRIDES"] = "http://canary:canary@127.0.0.1:1/x?canary", `{"extensions":{"key":"canary"}}`
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
	good := testkit.DaemonEnv(t, "postgres://nobody@localhost:1/x")
	for want, change := range map[string]map[string]string{
		"FUNCTION_TARGET is \"nope\": it must be one of agents, callbacks, ": {"FUNCTION_TARGET": "nope"},
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
		"EVENT_KEY is empty: collect-stats":  {"FUNCTION_TARGET": "collect-stats", "EVENT_KEY": ""},
		"WAKE_URL must be an http or https":  {"WAKE_URL": "http://x:canary@{function}"},
		"K_SINK is not an http or https URL": {"K_SINK": "broker/canary"},
		"K_CE_OVERRIDES is not JSON":         {"K_CE_OVERRIDES": `{"extensions":{"key":["canary"]}}`},
		"K_CA_CERTS holds no certificate":    {"K_CA_CERTS": "canary"},
		"CONNECTION_PUBLIC_KEY is empty":     {"CONNECTION_PUBLIC_KEY": ""},
		"CONNECTION_PRIVATE_KEY is empty":    {"CONNECTION_PRIVATE_KEY": ""},
		"CONNECTION_PRIVATE_KEY does not":    {"CONNECTION_PRIVATE_KEY": "canary"},
		"CONNECTION_CLOUDS must be":          {"CONNECTION_CLOUDS": "https://x:canary@keystone"},
		"AGENT_URL must be":                  {"AGENT_URL": "agents/canary"},
		"AGENT_TOKEN_TTL is 30s":             {"AGENT_TOKEN_TTL": "30s"},
		"CONSOLE_UPSTREAM must be":           {"CONSOLE_UPSTREAM": "http://x:canary@{function}"},
		"CONSOLE_UPSTREAM is empty":          {"FUNCTION_TARGET": "console"},
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
