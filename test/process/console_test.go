package process_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// alone is the console in a process of its own, which finds all other functions at one address.
func alone(t *testing.T, database, functions string, more map[string]string) (*testkit.Client, *exec.Cmd) {
	t.Helper()
	env := testkit.Env(t, database, more)
	env["FUNCTION_TARGET"], env["CONSOLE_UPSTREAM"] = "console", upstream(functions)
	app, cmd, logs := spawnSelf(t, env)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		testkit.NoSecretsIn(t, "the console", logs.Bytes())
	})
	return app, cmd
}

// signedIn are the headers of a page whose user has signed in.
func signedIn(t *testing.T, app *testkit.Client, p *testkit.Project) []string {
	t.Helper()
	page := []string{"X-Cloudfn-Console", "1", "Sec-Fetch-Site", "same-origin", "Content-Type", "application/json"}
	a := app.Do(t, "POST", "/console/session", fmt.Sprintf(`{"user": %q, "password": %q}`, p.Name,
		p.Environment()["OS_PASSWORD"]), page...)
	cookies := (&http.Response{Header: a.Header}).Cookies()
	if a.Status != 201 || len(cookies) != 1 {
		t.Fatalf("signing in: got %d %s", a.Status, a.Body)
	}
	testkit.Canary(cookies[0].Value)
	return append(page, "Cookie", cookies[0].Name+"="+cookies[0].Value)
}

// TestConsoleAlone: a console in a process of its own forwards the same requests as within the daemon, and reports
// functions that do not answer. Each answer has one row in the request log, by the function that gave it.
func TestConsoleAlone(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	database := testkit.Database(t)
	env, calls := slowNova(t, 1500*time.Millisecond)
	env["STATS_BACKFILL"] = "1h"
	functions := testkit.Spawn(t, testkit.Env(t, database, env))
	app, cmd := alone(t, database, functions.URL, nil)
	session := signedIn(t, app, p)
	conn := testkit.Connect(t, database)
	row := func(a testkit.Answer) string {
		return testkit.Scalar[string](t, conn,
			"select coalesce(string_agg(function || ' ' || path || ' ' || status, ','), '') from requests where request_id = $1", a.Header.Get("X-Request-Id"))
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		row                string
	}{
		{"GET", "/v1/stats?hours=2", "", 200, "stats /v1/stats 200"},
		{"GET", "/v1/servers?limit=x", "", 400, "servers /v1/servers 400"},
		{"GET", "/v1/callbacks", "", 200, "callbacks /v1/callbacks 200"},
		{"DELETE", "/v1/callbacks/x", "", 404, "callbacks /v1/callbacks/x 404"},
		{
			"GET", "/v1/%73ervers/" + uuid.Nil.String() + "x", "", 404,
			"servers /v1/servers/" + uuid.Nil.String() + "x 404",
		},
		{"PUT", "/v1/servers", "", 405, " /v1/servers 405"},
		{"GET", "/v1/nothing", "", 404, " /v1/nothing 404"},
		{"GET", "/v1/agents/x/bundle", "", 404, "console /console/api/v1/agents/x/bundle 404"},
		{"POST", "/v1/launch", strings.Repeat(" ", 1<<20+1), 413, "console /console/api/v1/launch 413"},
		{"POST", "/v1/launch", strings.Repeat(" ", 1<<20), 400, "launch /v1/launch 400"},
	} {
		a := app.Do(t, c.method, "/console/api"+c.path, c.body, session...)
		if got := row(a); a.Status != c.status || got != c.row {
			t.Errorf("%s %s: got %d %.300s with the row %q, want %q", c.method, c.path, a.Status, a.Body, got, c.row)
		}
	}
	if a := app.Get(t, "/"); a.Status != 302 {
		t.Errorf("the root: got %d", a.Status)
	}

	// One that has to end finishes what it has begun.
	var inFlight testkit.Answer
	var all sync.WaitGroup
	before := calls.Load()
	all.Go(func() { inFlight = app.Get(t, "/console/api/v1/servers?limit=1", session...) })
	testkit.Eventually(t, 10*time.Second, "the request is at Nova", func() bool { return calls.Load() > before })
	_ = cmd.Process.Signal(syscall.SIGTERM)
	all.Wait()
	if got := row(inFlight); inFlight.Status != 200 || got != "servers /v1/servers 200" {
		t.Errorf("while the console ends: got %d %s with the row %q", inFlight.Status, inFlight.Body, got)
	}

	// Another replica still has the session.
	app, _ = alone(t, database, functions.URL, map[string]string{"REQUEST_TIMEOUT": "1s"})
	a := app.Get(t, "/console/api/v1/servers?limit=1", session...)
	// the function may write that it was left alone
	if a.Status != 504 || !strings.Contains(row(a), "console /console/api/v1/servers 504") {
		t.Errorf("a function that is slow: got %d %s with the row %q", a.Status, a.Body, row(a))
	}
	app, _ = alone(t, database, functions.URL, nil)
	before = calls.Load()
	all.Go(func() {
		inFlight = app.Post(t, "/console/api/v1/launch?dry_run=true",
			`{"name": "x", "flavor": "m1.tiny", "image": "x", "networks": []}`, session...)
	})
	testkit.Eventually(t, 10*time.Second, "the request is at Nova", func() bool { return calls.Load() > before })
	functions.Kill()
	all.Wait()
	if inFlight.Status != 502 || row(inFlight) != "console /console/api/v1/launch 502" {
		t.Errorf("a function that was killed: got %d %s with the row %q", inFlight.Status, inFlight.Body, row(inFlight))
	}
	a = app.Get(t, "/console/api/v1/servers", session...)
	if a.Status != 503 || a.Header.Get("Retry-After") == "" || row(a) != "console /console/api/v1/servers 503" {
		t.Errorf("a function that is unavailable: got %d %s with the row %q", a.Status, a.Body, row(a))
	}
}

// TestConsoleBehindAGateway: the page, its session and the API have one address, which the gateway tells the console:
// Secure, and what an inner proxy says instead does not count.
func TestConsoleBehindAGateway(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	database := testkit.Database(t)
	daemon := testkit.Spawn(t, testkit.DaemonEnv(t, database))
	to, err := url.Parse(daemon.URL)
	if err != nil {
		t.Fatal(err)
	}
	// as an ingress inside of a cluster
	inner := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(to)
		p.Out.Header.Set("X-Forwarded-Host", "console.cloudfn.svc.cluster.local")
		p.Out.Header.Set("X-Forwarded-Proto", "http")
		p.Out.Header["Forwarded"] = p.In.Header["Forwarded"]
	}})
	t.Cleanup(inner.Close)
	gateway, cmd, logs := spawnSelf(t, map[string]string{"GATEWAY_UPSTREAM": upstream(inner.URL)}, "gateway")
	page := []string{
		"X-Cloudfn-Console", "1", "Origin", "https://cloudfn.example.com", "X-Forwarded-Host", "cloudfn.example.com",
		"X-Forwarded-Proto", "https",
	}
	body := fmt.Sprintf(`{"token": %q}`, p.Token(t))
	a := gateway.Post(t, "/console/session", body, page...)
	cookies := (&http.Response{Header: a.Header}).Cookies()
	if a.Status != 201 || len(cookies) != 1 || !cookies[0].Secure {
		t.Fatalf("signing in: got %d %s", a.Status, a.Body)
	}
	session := append([]string{"Cookie", cookies[0].Name + "=" + testkit.Canary(cookies[0].Value)}, page...)
	if a := gateway.Get(t, "/console/api/v1/servers", session...); a.Status != 200 {
		t.Errorf("servers: got %d %s", a.Status, a.Body)
	}
	exportedWhole(t, gateway, database, p, session)
	if a := gateway.Do(t, "DELETE", "/console/session", "", session...); a.Status != 204 ||
		!strings.Contains(a.Header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("signing out: got %d %s", a.Status, a.Body)
	}
	page[3] = "https://evil.example.com"
	if a := gateway.Post(t, "/console/session", body, page...); a.Status != 403 {
		t.Errorf("another origin: got %d %s", a.Status, a.Body)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	testkit.NoSecretsIn(t, "the gateway", logs.Bytes()) // no one writes there any more
}

// exportedWhole holds exports of many pages against the log, through the gateway and through the console behind it.
func exportedWhole(t *testing.T, gateway *testkit.Client, database string, p *testkit.Project, session []string) {
	t.Helper()
	const rows = 2500
	if _, err := testkit.Connect(t, database).Exec(t.Context(), `
insert into requests (id, function, method, path, status, ms, user_id, project_id, domain_id, request_id, remote, code)
select gen_random_uuid(), 'servers', 'GET', '/many/' || n, 200, 1, $1, $2, $3, '', '', '' from generate_series(1, $4) n`,
		p.UserID, p.ID, p.DomainID, rows); err != nil {
		t.Fatal(err)
	}
	for path, header := range map[string][]string{
		"/v1/requests": {"X-Auth-Token", p.Token(t)}, "/console/api/v1/requests": session,
	} {
		for kind, name := range map[string]string{
			"text/csv": "requests.csv", "application/x-ndjson": "requests.ndjson",
		} {
			a := gateway.Get(t, path, append([]string{"Accept", kind}, header...)...)
			if n := strings.Count(string(a.Body), "/many/"); a.Status != 200 || n != rows ||
				a.Header.Get("Content-Disposition") != `attachment; filename="`+name+`"` ||
				!strings.HasPrefix(a.Header.Get("Content-Type"), kind) {
				t.Errorf("%s as %s: got %d, %d of %d rows, %v", path, kind, a.Status, n, rows, a.Header)
			}
		}
	}
}
