package process_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	deliverevents "github.com/cloudfn/cloudfn/functions/deliver-events"
	pollinstances "github.com/cloudfn/cloudfn/functions/poll-instances"
	"github.com/cloudfn/cloudfn/functions/stats"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongPostgresStops answers 503 while it is unavailable, sends nothing to OpenStack, and recovers automatically.
func TestLongPostgresStops(t *testing.T) {
	t.Parallel()
	cluster := testkit.NewCluster(t)
	project := testkit.NewProject(t)
	token := project.Token(t)
	var calls atomic.Int64 // with the caller's token: the daemon's ticks have others
	nova, _ := testkit.Intercept(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(r *http.Request) {
		if r.Header.Get("X-Auth-Token") == token {
			calls.Add(1)
		}
	})
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo")
	env["STATS_BACKFILL"] = "1h"
	p := testkit.Spawn(t, testkit.Env(t, cluster.URL, env))
	app := p.As(token)
	if a := app.Get(t, "/v1/servers"); a.Status != 200 || calls.Load() == 0 {
		t.Fatalf("got %d %s after %d calls", a.Status, a.Body, calls.Load())
	}
	f := testkit.Sandbox(t)
	order := fmt.Sprintf(`{"name":"x","flavor":%q,"image":%q,"networks":[%q]}`, f.FlavorID, f.ImageID, f.NetworkID)
	for round := range 3 {
		cluster.Stop(t)
		before := calls.Load()
		for _, a := range []testkit.Answer{
			app.Post(t, "/v1/launch", order), app.Get(t, "/v1/servers"), app.Get(t, "/v1/stats"),
			app.Get(t, "/v1/nothing"), p.Get(t, "/v1/stats"),
		} {
			if a.Status != 503 || a.Header.Get("Retry-After") == "" {
				t.Errorf("round %d: got %d %v %s, want 503 with Retry-After", round, a.Status, a.Header, a.Body)
			}
		}
		if a := p.Get(t, "/v1/status"); a.Status != 200 || !strings.Contains(string(a.Body),
			`"postgres":{"reachable":false`) {
			t.Errorf("status: got %d %s", a.Status, a.Body)
		}
		if n := calls.Load() - before; n != 0 {
			t.Errorf("round %d: %d calls reached Nova", round, n)
		}
		cluster.Start(t)
		testkit.Eventually(t, 30*time.Second, "it answers again", func() bool {
			return app.Get(t, "/v1/servers").Status == 200
		})
	}
	if n := len(project.Servers(t)); n != 0 {
		t.Errorf("Nova has %d servers", n)
	}
}

// proxy leads connections to a Postgres. Those that are open stay where they are when it leads elsewhere, as with
// HAProxy and with an address that moves.
type proxy struct {
	socket atomic.Pointer[string]
	port   int
}

func newProxy(t *testing.T, to *testkit.Cluster) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	p := &proxy{port: listener.Addr().(*net.TCPAddr).Port}
	p.leadTo(t, to)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.pipe(client)
		}
	}()
	return p
}

func (p *proxy) leadTo(t *testing.T, to *testkit.Cluster) {
	t.Helper()
	socket := filepath.Join(to.Socket(t), ".s.PGSQL.5432")
	p.socket.Store(&socket)
}

func (p *proxy) pipe(client net.Conn) {
	server, err := net.Dial("unix", *p.socket.Load())
	if err != nil {
		_ = client.Close()
		return
	}
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = pair[0].Close()
			_ = pair[1].Close()
		}()
	}
}

// TestLongFailover stops the primary of two servers and promotes its standby; the old primary becomes its standby. One
// daemon has both servers in its URL, another one the PgBouncers before them. The third one has a proxy that leads to
// the old primary for too long.
func TestLongFailover(t *testing.T) {
	t.Parallel()
	a := testkit.NewCluster(t)
	b := testkit.NewStandby(t, a)
	project, proxy := testkit.NewProject(t), newProxy(t, a)
	token := project.Token(t)
	daemon := func(database string) *testkit.Client {
		env := testkit.DaemonEnv(t, database)
		return testkit.Spawn(t, env).As(token)
	}
	a.StartPgBouncer(t)
	b.StartPgBouncer(t)
	servers := "postgres:///cloudfn?user=postgres&host=" + url.QueryEscape(a.Socket(t)+","+b.Socket(t))
	both, pooled := daemon(servers), daemon(servers+"&port=6432,6432&default_query_exec_mode=cache_describe")
	through := daemon(fmt.Sprintf("postgres://postgres@127.0.0.1:%d/cloudfn?sslmode=disable", proxy.port))
	write := func(app *testkit.Client) bool {
		t.Helper()
		answer := app.Post(t, "/v1/callbacks", `{"url": "http://127.0.0.1:1/"}`)
		if answer.Status != 201 && (answer.Status != 503 || answer.Header.Get("Retry-After") == "") {
			t.Errorf("got %d %v %s, want 201, or 503 with Retry-After", answer.Status, answer.Header, answer.Body)
		}
		return answer.Status == 201
	}
	works := func(what string, app *testkit.Client) {
		t.Helper()
		start := time.Now()
		testkit.Eventually(t, 30*time.Second, what+" works again", func() bool { return write(app) })
		t.Logf("%s works again after %.1f s", what, time.Since(start).Seconds())
	}
	fails := func(what string, app *testkit.Client) {
		t.Helper()
		for range 8 {
			if write(app) {
				t.Errorf("%s wrote without a primary", what)
			}
		}
	}
	for _, app := range []*testkit.Client{both, pooled, through} {
		if !write(app) {
			t.Fatal("a daemon does not work")
		}
	}

	a.ShutDown(t)
	fails("the daemon with both servers", both)
	fails("the daemon with the proxy", through)
	b.Promote(t)
	works("the daemon with both servers", both)
	works("the daemon with both PgBouncers", pooled)
	a.Follow(t, b)
	fails("the daemon whose proxy leads to the standby", through)
	proxy.leadTo(t, b)
	works("the daemon whose proxy has led to the standby", through)

	b.ShutDown(t)
	fails("the daemon with both servers, later", both)
	a.Promote(t)
	works("the daemon with both servers, later", both)
	works("the daemon with both PgBouncers, later", pooled)
}

// TestFullDisk: when the request log cannot grow, the API answers 503, and servers are polled and events delivered.
// All resumes when there is room again. Postgres reports a full disk as this trigger does.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Pool(t, database)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`create function disk_full() returns trigger language plpgsql as
		$$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$`)
	exec("create trigger disk_full before insert on requests for each statement execute function disk_full()")
	app := testkit.Start(t, testkit.DaemonEnv(t, database), stats.Function, deliverevents.Function,
		pollinstances.Function)
	api := app.As(testkit.Token(t, "demo"))
	if a := api.Get(t, "/v1/stats"); a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("with a full disk: got %d %s", a.Status, a.Body)
	}
	receiver := testkit.NewSDKReceiver(t)
	secret := "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5"
	testkit.AddCallback(t, conn, "p", receiver.URL, domain.CallbackVerified, secret, "")
	testkit.AddEvents(t, conn, "p", []string{"019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"}, 1)
	for _, function := range []string{"deliver-events", "poll-instances"} {
		if a := app.Tick(t, function); a.Status/100 != 2 {
			t.Errorf("%s: got %d %s", function, a.Status, a.Body)
		}
	}
	testkit.Eventually(t, 10*time.Second, "the event is delivered", func() bool { return len(receiver.Events()) > 0 })
	exec("drop trigger disk_full on requests")
	if a := api.Get(t, "/v1/stats"); a.Status != http.StatusOK {
		t.Errorf("with room again: got %d %s", a.Status, a.Body)
	}
}
