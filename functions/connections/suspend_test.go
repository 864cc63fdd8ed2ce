package connections

import (
	"fmt"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSuspendAndResume checks that both are idempotent, and which callers may use them.
func TestSuspendAndResume(t *testing.T) {
	t.Parallel()
	app, _, _, woken := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	c := create(t, app, asking("trust", ""))
	path := "/v1/connections/" + c.ID.String()
	for _, tc := range []struct{ verb, status, etag string }{
		{"/resume", "active", `"1"`},
		{"/suspend", "suspended", `"2"`},
		{"/suspend", "suspended", `"2"`},
		{"/resume", "active", `"3"`},
	} {
		a := app.Post(t, path+tc.verb, "")
		var now Connection
		if a.JSON(t, &now); a.Status != 200 || string(now.Status) != tc.status || a.Header.Get("ETag") != tc.etag ||
			(!now.SuspendedAt.IsZero()) != (tc.status == "suspended") {
			t.Errorf("%s: got %d %s", tc.verb, a.Status, a.Body)
		}
		var usable, listed ConnectionPage
		app.Get(t, "/v1/connections?usable=true").JSON(t, &usable)
		app.Get(t, "/v1/connections?status="+tc.status).JSON(t, &listed)
		if (len(usable.Connections) == 1) != (tc.status == "active") || len(listed.Connections) != 1 {
			t.Errorf("while it is %s %d are usable, and %d listed", tc.status, len(usable.Connections),
				len(listed.Connections))
		}
	}
	woken.Await(t, "run-connections")
	for who, status := range map[*testkit.Client]int{
		app.As(colleague(t, p, "reader")):         403,
		app.As(testkit.BorrowProject(t).Token(t)): 404,
	} {
		if a := who.Post(t, path+"/suspend", ""); a.Status != status {
			t.Errorf("got %d %s, want %d", a.Status, a.Body, status)
		}
	}
	app.Do(t, "DELETE", path, "")
	if a := app.Post(t, path+"/resume", ""); a.Status != 409 {
		t.Errorf("after its end: %d %s", a.Status, a.Body)
	}
}

// TestChangesAreLimited by all replicas together: each writes an event, and a delivery for each of up to 100 callbacks.
func TestChangesAreLimited(t *testing.T) {
	t.Parallel()
	limited := map[string]string{"CHANGE_RATE_LIMIT": "3"}
	one, conn, database, _ := started(t, limited)
	p := testkit.BorrowProject(t)
	one = one.As(p.Token(t))
	two := testkit.Start(t, testkit.Env(t, database, limited), Function).As(p.Token(t))
	path := "/v1/connections/" + create(t, one, asking("trust", "")).ID.String()
	suspend := func(app *testkit.Client) testkit.Answer { return app.Post(t, path+"/suspend", "") }
	resume := func(app *testkit.Client) testkit.Answer { return app.Post(t, path+"/resume", "") }
	rename := func(name string) func(*testkit.Client) testkit.Answer {
		return func(app *testkit.Client) testkit.Answer {
			return app.Do(t, "PATCH", path, fmt.Sprintf(`{"name": %q}`, name), "Content-Type", "application/json")
		}
	}
	for n, tc := range []struct {
		status int
		change func(*testkit.Client) testkit.Answer
	}{
		{200, suspend},
		{200, suspend}, // it changes nothing, and does not count
		{200, rename("a")},
		{200, rename("a")},
		{200, resume},
		{200, resume},
		{429, suspend},
		{429, rename("b")},
		{200, rename("a")},
	} {
		if a := tc.change([]*testkit.Client{one, two}[n%2]); a.Status != tc.status ||
			a.Status == 429 && a.Header.Get("RateLimit-Policy") != `"change";q=3;w=60` {
			t.Errorf("change %d: got %d %.200s, want %d", n, a.Status, a.Body, tc.status)
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events"); n != 4 {
		t.Errorf("%d events, want that of the creation and three", n)
	}
}
