package callbacks

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDeliveriesAreLimited by all replicas together: those of tests, and those that are repeated.
func TestDeliveriesAreLimited(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	env := testkit.Env(t, database, map[string]string{
		"CALLBACK_TEST_RATE_LIMIT": "1", "CALLBACK_REDELIVER_RATE_LIMIT": "2",
	})
	one, two := testkit.Start(t, env, Function).As(p.Token(t)), testkit.Start(t, env, Function).As(p.Token(t))
	path := "/v1/callbacks/" + create(t, one, `{"url": "https://127.0.0.1:1/"}`).ID.String()
	var made Delivery
	one.Post(t, path+"/test", "").JSON(t, &made)
	ended := func() { exec(t, testkit.Connect(t, database), "update deliveries set status = 'dead'") }
	again := path + "/deliveries/" + made.ID.String() + "/redeliver"
	for n, app := range []*testkit.Client{one, two} {
		ended()
		if a := app.Post(t, again, ""); a.Status != 202 {
			t.Fatalf("redelivery %d: got %d %s", n, a.Status, a.Body)
		}
	}
	ended()
	for n, app := range []*testkit.Client{one, two} {
		for path, policy := range map[string]string{
			path + "/test": `"callback-test";q=1;w=60`, again: `"redeliver";q=2;w=60`,
		} {
			if a := app.Post(t, path, ""); a.Status != 429 || a.Header.Get("Retry-After") == "" ||
				a.Header.Get("RateLimit-Policy") != policy {
				t.Errorf("replica %d: got %d %v %s", n, a.Status, a.Header, a.Body)
			}
		}
	}
}

// TestAbsentCallbacksCountForNoLimit: a loop over wrong ids leaves the project its tests.
func TestAbsentCallbacksCountForNoLimit(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"CALLBACK_TEST_RATE_LIMIT": "1"})
	app := testkit.Start(t, env, Function).As(p.Token(t))
	id := create(t, app, `{"url": "https://127.0.0.1:1/"}`).ID
	change := func(id uuid.UUID) int {
		return app.Do(t, "PATCH", "/v1/callbacks/"+id.String(), `{"url": "https://127.0.0.1:2/"}`, "Content-Type",
			"application/json").Status
	}
	for range 3 {
		if got := change(uuid.New()); got != 404 {
			t.Errorf("an absent one: got %d, want 404", got)
		}
	}
	if got := change(id); got != 200 {
		t.Errorf("the project's: got %d, want 200", got)
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

// TestHandshakesOfNewCallbacksAreLimited: whoever creates and deletes callbacks in a loop sends a receiver no more
// requests than the limit of a project, and others' callbacks do not wait for these.
func TestHandshakesOfNewCallbacksAreLimited(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	env := testkit.Env(t, database, nil)
	p := testkit.BorrowProject(t)
	app := testkit.Start(t, env, Function).As(p.Token(t))
	due := func(id uuid.UUID) float64 { // seconds
		return testkit.Scalar[float64](t, conn,
			"select coalesce(extract(epoch from not_before - created_at), 0)::float8 from callbacks where id = $1", id)
	}
	useUp := func(of string) {
		exec(t, conn, "update rate_limits set used_up = now() + $1 where name = 'handshake' and source = $2", of, p.ID)
	}
	const body = `{"url": "https://127.0.0.1:1/"}`
	create(t, app, body)
	useUp("30 seconds")
	const used = "select used_up from rate_limits where name = 'handshake'"
	before := testkit.Scalar[time.Time](t, conn, used)
	for range 2 {
		id := create(t, app, body).ID
		if wait := due(id); wait > 0 {
			t.Errorf("within the limit one waits for %.1f s", wait)
		}
		app.Do(t, "DELETE", "/v1/callbacks/"+id.String(), "")
	}
	if more := testkit.Scalar[time.Time](t, conn, used).Sub(before); more != 200*time.Millisecond {
		t.Errorf("two that are deleted count for %s", more)
	}
	useUp("3 minutes")
	if wait := due(create(t, app, body).ID); wait < 60 || wait > 125 {
		t.Errorf("beyond the limit one waits for %.1f s", wait)
	}
	other := testkit.BorrowProject(t)
	if wait := due(create(t, testkit.Start(t, env, Function).As(other.Token(t)), body).ID); wait > 0 {
		t.Errorf("another project's waits for %.1f s", wait)
	}
	useUp("61 minutes")
	a := app.Post(t, "/v1/callbacks", body)
	if a.Status != 429 || a.Header.Get("Retry-After") == "" ||
		a.Header.Get("RateLimit-Policy") != `"handshake";q=36000;w=3600` {
		t.Errorf("an hour beyond it: got %d %v %s", a.Status, a.Header, a.Body)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from callbacks where project_id = $1", p.ID); n != 2 {
		t.Errorf("%d callbacks are stored", n)
	}
}
