package callbacks

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const good = `{"url": "https://receiver.example.com"}`

// TestIdempotencyKey: a repeated request gets the first response, and changes nothing.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	p, other, database := testkit.BorrowProject(t), testkit.BorrowProject(t), testkit.Database(t)
	conn := testkit.Connect(t, database)
	served := testkit.Start(t, testkit.Env(t, database, nil), Function)
	app := served.As(p.Token(t))
	key := testkit.Canary(uuid.NewString())
	send := func(client *testkit.Client, path, body string, keys ...string) testkit.Answer {
		t.Helper()
		header := []string{"Content-Type", "application/json"}
		for _, key := range keys {
			header = append(header, "Idempotency-Key", key)
		}
		return client.Do(t, "POST", path, body, header...)
	}
	first := send(app, "/v1/callbacks", good, key)
	if first.Status != 201 || first.Header.Get("Idempotency-Replayed") != "" {
		t.Fatalf("got %d %s", first.Status, first.Body)
	}
	for _, written := range []string{key, `"` + key + `"`} {
		a := send(app, "/v1/callbacks", good, written)
		if a.Status != 201 || string(a.Body) != string(first.Body) || a.Header.Get("Idempotency-Replayed") != "true" ||
			a.Header.Get("Location") != first.Header.Get("Location") ||
			a.Header.Get("X-Request-Id") == first.Header.Get("X-Request-Id") {
			t.Errorf("again: got %d %v %s", a.Status, a.Header, a.Body)
		}
	}
	for name, tc := range map[string]struct {
		client     *testkit.Client
		path, body string
		keys       []string
		want       int
	}{
		"another body":       {app, "", `{"url": "https://receiver.example.com/2"}`, []string{key}, 422},
		"another path":       {app, "/" + uuid.NewString() + "/test", "", []string{key}, 422},
		"a faulty body":      {app, "", `{"url": 5}`, []string{key}, 400},
		"another project":    {served.As(other.Token(t)), "", good, []string{key}, 201},
		"short":              {app, "", good, []string{"123456789012345"}, 400},
		"long":               {app, "", good, []string{strings.Repeat("1", 256)}, 400},
		"not printable":      {app, "", good, []string{"1234567890123456 é"}, 400},
		"with a quote in it": {app, "", good, []string{`12345678"90123456`}, 400},
	} {
		if a := send(tc.client, "/v1/callbacks"+tc.path, tc.body, tc.keys...); a.Status != tc.want {
			t.Errorf("%s: got %d %s, want %d", name, a.Status, a.Body, tc.want)
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from callbacks where project_id = $1", p.ID); n != 1 {
		t.Errorf("there are %d callbacks", n)
	}
	stored := testkit.Scalar[string](t, conn, `
select string_agg(k::text || encode(response, 'escape') || encode(key_id, 'escape'), '') from idempotency_keys k`)
	for _, secret := range []string{key, "whsec_", "receiver.example.com"} {
		if strings.Contains(stored, secret) {
			t.Errorf("%s is stored", secret)
		}
	}
	// What was rejected frees its key.
	path, rejected := "/v1/callbacks/"+uuid.NewString()+"/test", uuid.NewString()
	if a := send(app, path, "", rejected); a.Status != 404 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if a := send(app, "/v1/callbacks", good, rejected); a.Status != 201 {
		t.Errorf("after a rejection: got %d %s", a.Status, a.Body)
	}
	// A key that has expired is a new one.
	exec(t, conn, "update idempotency_keys set expires_at = clock_timestamp()")
	if a := send(app, "/v1/callbacks", good, key); a.Status != 201 || string(a.Body) == string(first.Body) {
		t.Errorf("after its end: got %d %s", a.Status, a.Body)
	}
}

func undone(streams string) string {
	return "with d as (delete from deliveries where callback_id = $1 and stream like '" + streams +
		"') delete from streams where callback_id = $1 and stream like '" + streams + "'"
}

// TestKeyedCrashPoints: whenever a replica dies, the effect of a request that is sent again is there once.
func TestKeyedCrashPoints(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]struct {
		path, body, effect string // effect counts what the request makes
		undo               string // takes it away
		want               int
	}{
		"create with a secret": {
			"", `{"url": "https://receiver.example.com", "secret": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"}`,
			"callbacks where id <> $1 and previous_secret is null", "delete from callbacks where id <> $1", 201,
		},
		"create": {"", good, "callbacks where id <> $1", "delete from callbacks where id <> $1", 201},
		"rotate": {"/{id}/secret", "", "callbacks where previous_secret is not null and id = $1", `
update callbacks set previous_secret = null, previous_until = null where id = $1`, 200},
		"test": {
			"/{id}/test", "", "deliveries where callback_id = $1 and stream like 'test/%' and status = 'due'",
			undone("test/%"), 202,
		},
		"redeliver": {
			"/{id}/deliveries/{delivery}/redeliver", "",
			"deliveries where callback_id = $1 and stream like 'redelivery/%'",
			undone("redelivery/%"), 202,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, database := testkit.BorrowProject(t), testkit.Database(t)
			conn := testkit.Connect(t, database)
			app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
			id := create(t, app, `{"url": "https://receiver.example.com/1"}`).ID
			path := strings.ReplaceAll(op.path, "{id}", id.String())
			if strings.Contains(path, "{delivery}") {
				var d Delivery
				app.Post(t, "/v1/callbacks/"+id.String()+"/test", "").JSON(t, &d)
				exec(t, conn, "update deliveries set status = 'dead'")
				path = strings.ReplaceAll(path, "{delivery}", d.ID.String())
			}
			key := uuid.NewString()
			send := func() testkit.Answer {
				t.Helper()
				return app.Do(t, "POST", "/v1/callbacks"+path, op.body, "Content-Type", "application/json",
					"Idempotency-Key", key)
			}
			once := func(when string, want int, isReplayed bool) (made struct{ ID uuid.UUID }) {
				t.Helper()
				a := send()
				if a.JSON(t, &made); a.Status != want || (a.Header.Get("Idempotency-Replayed") != "") != isReplayed {
					t.Errorf("%s: got %d %s", when, a.Status, a.Body)
				}
				n := testkit.Scalar[int](t, conn, "select count(*)::int from "+op.effect, id)
				if n != 1 {
					t.Errorf("%s: it is there %d times", when, n)
				}
				return made
			}
			first := once("first", op.want, false)
			once("stored", op.want, true)
			testkit.LeaveRequests(t, conn, testkit.AtWork)
			once("at work", 409, false)
			testkit.LeaveRequests(t, conn, testkit.Died)
			if name == "test" {
				testkit.UseUp(t, conn, "callback-test")
			}
			if again := once("died when it was done", op.want, false); again != first {
				t.Errorf("it made %s, and then %s", first.ID, again.ID)
			}
			exec(t, conn, "delete from rate_limits")
			once("then stored", op.want, true)
			exec(t, conn, op.undo, id)
			testkit.LeaveRequests(t, conn, testkit.Died)
			if again := once("died before", op.want, false); again != first {
				t.Errorf("it made %s, and then %s", first.ID, again.ID)
			}
		})
	}
}

// TestResumedSecret: the callback that an attempt has stored gets a secret that its owner sees, and the one before
// signs, too.
func TestResumedSecret(t *testing.T) {
	t.Parallel()
	p, database := testkit.BorrowProject(t), testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	send := func() (c shown) {
		t.Helper()
		app.Do(t, "POST", "/v1/callbacks", good, "Content-Type", "application/json", "Idempotency-Key",
			"key-of-this-test").JSON(t, &c)
		return c
	}
	first := send()
	testkit.LeaveRequests(t, conn, testkit.Died)
	second := send()
	if second.ID != first.ID || second.Secret == first.Secret ||
		opened(t, conn, "secret", p.ID, first.ID) != second.Secret ||
		opened(t, conn, "previous_secret", p.ID, first.ID) != first.Secret {
		t.Errorf("got %+v", second)
	}
}

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
	// Another receiver is asked immediately; how often, the limit of tests says.
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

// TestHandshakesOfNewCallbacksAreLimited: anyone who creates and deletes callbacks in a loop sends a receiver no more
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

// refuseRows makes the request log reject rows, as a full disk does.
const refuseRows = `
create function refuse() returns trigger language plpgsql as $$ begin raise 'refused' using errcode = '53100'; end $$;
create trigger refuse before insert on requests for each row execute function refuse()`

// TestUnrecordedCallback: the callback is there, and the answer does not look like one to a request that was not begun.
func TestUnrecordedCallback(t *testing.T) {
	t.Parallel()
	p, database := testkit.BorrowProject(t), testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	exec(t, conn, refuseRows)
	a := app.Post(t, "/v1/callbacks", `{"url": "https://receiver.example.com"}`)
	if a.Status != 503 || !strings.Contains(string(a.Body), `"outcome":"unknown"`) ||
		a.Header.Get("Location") != "" || strings.Contains(string(a.Body), "whsec_") {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if a := app.Get(t, "/v1/callbacks"); a.Status != 503 || strings.Contains(string(a.Body), "outcome") {
		t.Errorf("a list: got %d %s", a.Status, a.Body)
	}
	key := []string{"Content-Type", "application/json", "Idempotency-Key", uuid.NewString()}
	a = app.Do(t, "POST", "/v1/callbacks", good, key...)
	if a.Status != 503 || !strings.Contains(string(a.Body), `"outcome":"unknown"`) {
		t.Errorf("with a key: got %d %s", a.Status, a.Body)
	}
	exec(t, conn, "drop trigger refuse on requests")
	a = app.Do(t, "POST", "/v1/callbacks", good, key...)
	if a.Status != 201 || !strings.Contains(string(a.Body), "whsec_") ||
		a.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("with the same key: got %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from callbacks"); n != 2 {
		t.Errorf("there are %d callbacks, want one of each request", n)
	}
}
