package connections

import (
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
