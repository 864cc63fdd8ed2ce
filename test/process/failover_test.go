package process_test

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
