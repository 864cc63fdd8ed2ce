package console

import (
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// proxyBodies passes bodies of up to 1 MiB, and rejects larger ones.
func proxyBodies(t *testing.T, d daemon) {
	b := d.signIn(t, testkit.BorrowProject(t))
	for size, want := range map[int]int{1 << 20: 400, 1<<20 + 1: 413} {
		a := b.ask(t, "POST", apiPath+"/v1/launch", strings.Repeat(" ", size))
		if a.Status != want {
			t.Errorf("%d bytes: got %d %s, want %d", size, a.Status, a.Body, want)
		}
	}
}

// TestProxyWithoutFunctions answers 503 with a row of the console.
func TestProxyWithoutFunctions(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	// Nothing listens at port 1 of any loopback address; the name is resolved by the system.
	app := testkit.Start(t, testkit.Env(t, database,
		map[string]string{"CONSOLE_UPSTREAM": "http://{function}.localhost:1"}), Function)
	b := signInTo(t, app, password(p, ""))
	a := b.ask(t, "GET", apiPath+"/v1/servers", "")
	if a.Status != 503 || a.Header.Get("Retry-After") == "" || !strings.Contains(string(a.Body), "cannot be reached") {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	n := testkit.Scalar[int](t, testkit.Pool(t, database),
		"select count(*)::int from requests where function = 'console' and path = '/console/api/v1/servers' and status = "+
			"503 and request_id = $1",
		a.Header.Get("X-Request-Id"))
	if n != 1 {
		t.Errorf("it has %d rows", n)
	}
}
