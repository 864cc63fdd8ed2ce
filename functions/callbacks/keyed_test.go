package callbacks

import (
	"strings"
	"testing"

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
