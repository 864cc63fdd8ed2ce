package callbacks

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestTestsAreLimited by all replicas together.
func TestTestsAreLimited(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"CALLBACK_TEST_RATE_LIMIT": "2"})
	one, two := testkit.Start(t, env, Function).As(p.Token(t)), testkit.Start(t, env, Function).As(p.Token(t))
	path := "/v1/callbacks/" + create(t, one, `{"url": "https://127.0.0.1:1/"}`).ID.String() + "/test"
	for n, app := range []*testkit.Client{one, two} {
		if a := app.Post(t, path, ""); a.Status != 202 {
			t.Fatalf("test %d: got %d %s", n, a.Status, a.Body)
		}
	}
	for n, app := range []*testkit.Client{one, two} {
		if a := app.Post(t, path, ""); a.Status != 429 || a.Header.Get("Retry-After") == "" ||
			a.Header.Get("RateLimit-Policy") != `"callback-test";q=2;w=60` {
			t.Errorf("replica %d: got %d %v %s", n, a.Status, a.Header, a.Body)
		}
	}
}

// TestVerifiedAgainEndsNoPause: a receiver that does not consent is not asked more often because an owner wants it.
func TestVerifiedAgainEndsNoPause(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	env := testkit.Env(t, database, map[string]string{"CALLBACK_TEST_RATE_LIMIT": "3"})
	app := testkit.Start(t, env, Function).As(p.Token(t))
	id := create(t, app, `{"url": "https://127.0.0.1:1/"}`).ID
	exec(t, conn, "update callbacks set failures = 5, failing_since = now(), not_before = now() + interval '1 hour' "+
		"where id = $1", id)
	change := func(body string) int {
		return app.Do(t, "PATCH", "/v1/callbacks/"+id.String(), body, "Content-Type", "application/json").Status
	}
	isPaused := func() bool {
		return testkit.Scalar[bool](t, conn,
			"select failures = 5 and not_before > now() from callbacks where id = $1", id)
	}
	for n := range 2 {
		if got := change(`{"status": "verified"}`); got != 200 || !isPaused() {
			t.Errorf("verified, %d: got %d, paused: %t", n, got, isPaused())
		}
	}
	// Another receiver is asked at once; how often, the limit of tests says.
	if got := change(`{"url": "https://127.0.0.1:2/"}`); got != 200 || isPaused() {
		t.Errorf("another URL: got %d, paused: %t", got, isPaused())
	}
	for body, want := range map[string]int{
		`{"url": "https://127.0.0.1:3/"}`: 429, `{"status": "verified"}`: 429, `{"events": []}`: 200,
		`{"status": "suspended"}`: 200,
	} {
		if got := change(body); got != want {
			t.Errorf("%s: got %d, want %d", body, got, want)
		}
	}
}

// TestCallbacksOfProjectAreLimited: those of its instances and orders count, and those that are gone do not.
func TestCallbacksOfProjectAreLimited(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	env := testkit.Env(t, database, map[string]string{"CALLBACKS_PER_PROJECT": "3"})
	app := testkit.Start(t, env, Function).As(p.Token(t))
	exec(t, conn, `insert into callbacks (project_id, id, user_id, url, status, secret, order_id)
		select $1, gen_random_uuid(), 'u', 'https://receiver.example.com', s, '', o
		from (values ('pending', gen_random_uuid()), ('gone', null), ('gone', null)) as c (s, o)`, p.ID)
	create(t, app, `{"url": "https://127.0.0.1:1/"}`)
	create(t, app, `{"url": "https://127.0.0.1:1/"}`)
	if a := app.Post(t, "/v1/callbacks", `{"url": "https://127.0.0.1:1/"}`); a.Status != 409 ||
		!strings.Contains(string(a.Body), "at most 3 callbacks") {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	gone := testkit.Scalar[uuid.UUID](t, conn, "select id from callbacks where status = 'gone' limit 1")
	if a := app.Do(t, "PATCH", "/v1/callbacks/"+gone.String(), `{"status": "verified"}`, "Content-Type",
		"application/json"); a.Status != 409 {
		t.Errorf("one that is gone: got %d %s", a.Status, a.Body)
	}
}
