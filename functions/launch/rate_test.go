package launch

import (
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLaunchesAreLimited by all replicas together; dry runs do not count.
func TestLaunchesAreLimited(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"LAUNCH_RATE_LIMIT": "2"})
	one, two := testkit.Start(t, env, Function).As(p.Token(t)), testkit.Start(t, env, Function).As(p.Token(t))
	text := body(t, object{"flavor": "no-such-flavor"})
	for n, app := range []*testkit.Client{one, two} {
		if a := app.Post(t, "/v1/launch", text); a.Status == 429 {
			t.Fatalf("launch %d: got %d %s", n, a.Status, a.Body)
		}
	}
	for n, app := range []*testkit.Client{one, two} {
		if a := app.Post(t, "/v1/launch", text); a.Status != 429 ||
			a.Header.Get("RateLimit-Policy") != `"launch";q=2;w=60` {
			t.Errorf("replica %d: got %d %v %s", n, a.Status, a.Header, a.Body)
		}
		if a := app.Post(t, "/v1/launch?dry_run=true", text); a.Status != 200 {
			t.Errorf("replica %d, a dry run: got %d %s", n, a.Status, a.Body)
		}
	}
}

// TestRepeatedLaunchIsNotLimited: an order that is there already is shown, also when the limit is used up.
func TestRepeatedLaunchIsNotLimited(t *testing.T) {
	t.Parallel()
	d := delegated(t, nil)
	text := d.body(t, object{"id": uuid.NewString()})
	if a := d.app.Post(t, "/v1/launch", text); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	testkit.UseUp(t, d.conn, "launch")
	for text, want := range map[string]int{text: 200, d.body(t, object{"id": uuid.NewString()}): 429} {
		if a := d.app.Post(t, "/v1/launch", text); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", text, a.Status, a.Body, want)
		}
	}
}
