package callbacks

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

const given = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5" // "canary", four times

// shown is an answer with the secret or without.
type shown struct {
	Callback
	Secret string `json:"secret"`
}

func create(t *testing.T, app *testkit.Client, body string) shown {
	t.Helper()
	a := app.Post(t, "/v1/callbacks", body)
	if a.Status != 201 {
		t.Fatalf("%s: got %d %s", body, a.Status, a.Body)
	}
	var c shown
	a.JSON(t, &c)
	if a.Header.Get("Location") != "/v1/callbacks/"+c.ID.String() {
		t.Errorf("Location is %q", a.Header.Get("Location"))
	}
	return c
}

func opened(t *testing.T, conn *pgx.Conn, column, project string, id uuid.UUID) string {
	t.Helper()
	keys, err := seal.ParsePrivateKeys(testkit.SealPrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	sealed := testkit.Scalar[[]byte](t, conn, "select "+column+" from callbacks where id = $1", id)
	secret, err := keys.Open(domain.Callback{ProjectID: project, ID: id}.SealedFor(), sealed)
	if err != nil {
		t.Fatal(err)
	}
	return secret.Reveal()
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestCallbackLifecycle(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	woken := testkit.NewWakes(t)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"WAKE_URL": woken.URL}), Function).As(p.Token(t))

	c := create(t, app, `{"url": "https://receiver.example.com/hook?key=x",
		"events": ["cloudfn.order.state.v1", "cloudfn.instance.state.v1", "cloudfn.order.state.v1"]}`)
	if c.Status != domain.CallbackPending || c.URL != "https://receiver.example.com/hook?key=x" || len(c.Events) != 2 ||
		!strings.HasPrefix(c.Secret, "whsec_") || c.InstanceID != uuid.Nil || c.OrderID != uuid.Nil || c.UserID == "" {
		t.Errorf("got %+v", c)
	}
	woken.Await(t, "deliver-events")
	path := "/v1/callbacks/" + c.ID.String()
	var got shown
	if a := app.Get(t, path); strings.Contains(string(a.Body), "whsec") || strings.Contains(string(a.Body), "secret") {
		t.Errorf("the secret is shown again: %s", a.Body)
	} else if a.JSON(t, &got); got.ID != c.ID || got.URL != c.URL || got.Status != c.Status {
		t.Errorf("got %+v", got)
	}
	if secret := opened(t, conn, "secret", p.ID, c.ID); secret != c.Secret {
		t.Error("the sealed secret in the database is another one")
	}

	// The secret is rotated; the previous one signs too during the overlap.
	rotated := func(body string) shown {
		t.Helper()
		a := app.Post(t, path+"/secret", body)
		var r shown
		if a.JSON(t, &r); a.Status != 200 {
			t.Fatalf("%s: got %d %s", body, a.Status, a.Body)
		}
		return r
	}
	second := rotated("")
	if second.Secret == c.Secret || second.Overlap.IsZero() || opened(t, conn, "secret", p.ID, c.ID) != second.Secret ||
		opened(t, conn, "previous_secret", p.ID, c.ID) != c.Secret {
		t.Errorf("rotated: %+v", second)
	}
	// A request that is sent again, or another rotation, ends no secret that the receiver may still have.
	for range domain.MaxOlderSecrets {
		rotated(`{"overlap": "1h"}`)
	}
	for n, secret := range []string{c.Secret, second.Secret} {
		if opened(t, conn, fmt.Sprintf("older_secrets[%d]", n+1), p.ID, c.ID) != secret {
			t.Errorf("secret %d signs no more after more rotations", n+1)
		}
	}
	if a := app.Post(t, path+"/secret", ""); a.Status != 409 || !strings.Contains(string(a.Body), "overlap 0s") {
		t.Errorf("one more rotation: got %d %s", a.Status, a.Body)
	}
	if left := time.Until(second.Overlap); left < 23*time.Hour || left > 24*time.Hour {
		t.Errorf("the overlap is %s", left)
	}
	if third := rotated(`{"secret": "` + given + `", "overlap": "0s"}`); third.Secret != given || !third.Overlap.IsZero() {
		t.Errorf("rotated without overlap: %+v", third)
	}
	if testkit.Scalar[bool](t, conn, "select previous_secret is not null from callbacks where id = $1", c.ID) {
		t.Error("the previous secret is kept without an overlap")
	}
	if n := testkit.Scalar[int](t, conn, "select cardinality(older_secrets) from callbacks where id = $1", c.ID); n != 0 {
		t.Errorf("%d older secrets are kept without an overlap", n)
	}
	if dump := testkit.Dump(t, database); strings.Contains(dump, "whsec") || strings.Contains(dump, "canary") ||
		strings.Contains(dump, "Y2FuYXJ5") || strings.Contains(dump, c.Secret[6:]) {
		t.Error("a secret is in the database")
	}

	if a := app.Do(t, "DELETE", path, ""); a.Status != 204 || len(a.Body) != 0 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	for _, a := range []testkit.Answer{
		app.Get(t, path), app.Do(t, "DELETE", path, ""), app.Post(t, path+"/test", ""),
		app.Post(t, path+"/secret", ""),
	} {
		if a.Status != 404 {
			t.Errorf("after it was deleted: %d %s", a.Status, a.Body)
		}
	}
}

// status is a callback's row as text, and the events of its changes.
func status(t *testing.T, conn *pgx.Conn, id uuid.UUID) (domain.CallbackStatus, []string) {
	t.Helper()
	rows, _ := conn.Query(context.Background(),
		`select seq || ' ' || (data->>'previous_status') || ' ' || (data->>'status') from events
		where subject = $1 and type = $2 order by seq`,
		id.String(), domain.CallbackEvent)
	events, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Scalar[domain.CallbackStatus](t, conn, "select status from callbacks where id = $1", id), events
}

// TestChangeCallback publishes each change of the status to the others, and retries waiting deliveries.
func TestChangeCallback(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	watcher := create(t, app, `{"url": "https://watcher.example.com", "events": ["cloudfn.callback.state.v1"]}`)
	c := create(t, app, `{"url": "https://receiver.example.com/a"}`)
	path := "/v1/callbacks/" + c.ID.String()
	change := func(body string, code int, want domain.CallbackStatus) Callback {
		t.Helper()
		a := app.Do(t, "PATCH", path, body, "Content-Type", "application/json")
		if a.Status != code {
			t.Fatalf("%s: got %d %s", body, a.Status, a.Body)
		}
		var got Callback
		if code == 200 {
			a.JSON(t, &got)
		}
		if code == 200 && got.Status != want {
			t.Errorf("%s: it is %s, want %s", body, got.Status, want)
		}
		if now, _ := status(t, conn, c.ID); now != want {
			t.Errorf("%s: the row says %s, want %s", body, now, want)
		}
		return got
	}
	change(`{"url": "https://receiver.example.com/b"}`, 200, domain.CallbackPending)
	// as deliver-events does
	exec(t, conn, "update callbacks set status = 'verified', allowed_rate = 5 where id = $1", c.ID)
	if got := change(`{"events": ["cloudfn.order.state.v1"]}`, 200, domain.CallbackVerified); len(got.Events) != 1 ||
		got.URL != "https://receiver.example.com/b" || got.Rate != 5 {
		t.Errorf("got %+v", got)
	}
	change(`{"url": "https://receiver.example.com/b", "status": "verified", "events": []}`, 200, domain.CallbackVerified)
	if got := change(`{"status": "suspended"}`, 200, domain.CallbackSuspended); got.Reason == "" {
		t.Error("no reason is given")
	}
	change(`{"status": "suspended"}`, 200, domain.CallbackSuspended)
	change(`{"url": "https://receiver.example.com/c"}`, 200, domain.CallbackSuspended)

	// An event waits, in a stream that has failed for long, when the callback resumes.
	exec(t, conn, "insert into events (project_id, subject, seq, type, at, data) values ($1, 'order', 1, $2, now(), '{}')",
		p.ID, domain.OrderEvent)
	exec(t, conn, "update streams set next_at = now() + interval '5 hours', attempts = 20, failing_since = now() - "+
		"interval '3 days' where callback_id = $1", c.ID)
	exec(t, conn, "update callbacks set failures = 9, failing_since = now(), not_before = now() + interval '1 day', "+
		"claim_id = gen_random_uuid(), claimed_until = now() + interval '1 hour' where id = $1", c.ID)
	if got := change(`{"status": "verified"}`, 200, domain.CallbackPending); got.Reason != "" {
		t.Errorf("the reason is still %q", got.Reason)
	}
	if !testkit.Scalar[bool](t, conn,
		"select failures = 0 and failing_since is null and not_before is null and claim_id is null and claimed_until is "+
			"null from callbacks where id = $1", c.ID) {
		t.Error("its handshake is not due immediately")
	}
	if !testkit.Scalar[bool](t, conn,
		"select next_at <= now() and attempts = 0 and failing_since is null and head < tail from streams where "+
			"callback_id = $1", c.ID) {
		t.Error("what waited is not retried")
	}
	exec(t, conn, "update callbacks set status = 'verified' where id = $1", c.ID)
	change(`{"url": "https://receiver.example.com/d"}`, 200, domain.CallbackPending)
	exec(t, conn, "update callbacks set status = 'gone' where id = $1", c.ID)
	change(`{"status": "suspended"}`, 409, domain.CallbackGone)
	change(`{"events": []}`, 200, domain.CallbackGone)
	change(`{"status": "verified"}`, 200, domain.CallbackPending)

	_, events := status(t, conn, c.ID)
	want := "[1 verified suspended 2 suspended pending 3 verified pending 4 gone pending]"
	if fmt.Sprint(events) != want {
		t.Errorf("the events are %v, want %s", events, want)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*) from deliveries where callback_id = $1 and subject = $2",
		watcher.ID, c.ID.String()); n != 4 {
		t.Errorf("the other callback gets %d of 4 events", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*) from deliveries where callback_id = $1 and subject = $2", c.ID,
		c.ID.String()); n != 0 {
		t.Error("the callback gets events about itself")
	}
}

func TestRejectsInvalidRequests(t *testing.T) {
	t.Parallel()
	env := testkit.Env(t, testkit.Database(t), map[string]string{"CALLBACK_ALLOW": "10.1.0.0/16"})
	app := testkit.Start(t, env, Function).As(testkit.Token(t, "demo"))
	c := create(t, app, `{"url": "http://10.1.2.3/x", "secret": "`+given+`"}`)
	t.Cleanup(func() { app.Do(t, "DELETE", "/v1/callbacks/"+c.ID.String(), "") })
	path := "/v1/callbacks/" + c.ID.String()
	const good = `"url": "https://receiver.example.com"`
	for _, tc := range []struct{ method, path, body, field string }{
		{"POST", "", `{}`, "url"},
		{"POST", "", `{"url": ""}`, "url"},
		{"POST", "", `{"url": "http://receiver.example.com@127.0.0.1"}`, "url"},
		{"POST", "", `{"url": "https://127.0.0.1"}`, "url"},
		{"POST", "", `{"url": "https://169.254.169.254/latest"}`, "url"},
		{"POST", "", `{"url": "http://1.1.1.1"}`, "url"},
		{"POST", "", `{` + good + `, "events": ["x"]}`, "events[0]"},
		{"POST", "", `{` + good + `, "events": ["cloudfn.callback.test.v1"]}`, "events[0]"},
		{"POST", "", `{` + good + `, "instance_id": "x"}`, "instance_id"},
		{"POST", "", `{` + good + `, "order_id": "00000000-0000-0000-0000-000000000000"}`, "order_id"},
		{
			"POST", "", `{` + good + `, "order_id": "` + uuid.NewString() + `", "instance_id": "` + uuid.NewString() + `"}`,
			"order_id",
		},
		{"POST", "", `{` + good + `, "secret": ""}`, "secret"},
		{"POST", "", `{` + good + `, "secret": "whsec_short"}`, "secret"},
		{"PATCH", path, `{"status": "gone"}`, "status"},
		{"PATCH", path, `{"status": "pending"}`, "status"},
		{"PATCH", path, `{"url": "http://127.0.0.1"}`, "url"},
		{"PATCH", path, `{"events": ["x"]}`, "events[0]"},
		{"PATCH", path, `{"secret": "` + given + `"}`, "secret"},
		{"PATCH", path, `{"order_id": null}`, "order_id"},
		{"POST", path + "/secret", `{"overlap": "169h"}`, "overlap"},
		{"POST", path + "/secret", `{"overlap": "-1s"}`, "overlap"},
		{"POST", path + "/secret", `{"secret": "` + given + `!"}`, "secret"},
	} {
		full := tc.path
		if !strings.HasPrefix(full, "/") {
			full = "/v1/callbacks" + full
		}
		if a := app.Do(t, tc.method, full, tc.body, "Content-Type", "application/json"); a.Status != 400 ||
			!testkit.Names(t, a, tc.field) || strings.Contains(string(a.Body), "Y2Fu") {
			t.Errorf("%s %s %s: got %d %s, want 400 that names %s", tc.method, full, tc.body, a.Status, a.Body,
				tc.field)
		}
	}
	if a := app.Do(t, "PATCH", path, `{}`, "Content-Type", "application/json"); a.Status != 400 {
		t.Errorf("no change: got %d %s", a.Status, a.Body)
	}
	if a := app.Get(t, "/v1/callbacks/"+strings.ToUpper(c.ID.String())); a.Status != 200 {
		t.Errorf("an id in upper case: got %d %s", a.Status, a.Body)
	}
}

// TestSecretsAreNotLogged runs a process of its own, which needs a key.
func TestSecretsAreNotLogged(t *testing.T) {
	t.Parallel()
	env := testkit.Env(t, testkit.Database(t), map[string]string{
		"FUNCTION_TARGET": "callbacks", "LOG_LEVEL": "DEBUG",
		"SEAL_PRIVATE_KEY": "", "OS_CLOUD": "demo",
	})
	process := testkit.Spawn(t, env)
	app := process.As(testkit.Token(t, "demo"))
	c := create(t, app, `{"url": "https://receiver.example.com/hook?key=canary", "secret": "`+given+`"}`)
	if a := app.Post(t, "/v1/callbacks/"+c.ID.String()+"/test", ""); a.Status != 202 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	app.Post(t, "/v1/callbacks", `{"url": "https://u:canary@127.0.0.1/?canary", "secret": "`+given+`x"}`)
	if code := process.Terminate(t, 10*time.Second); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if log := process.Log(); strings.Contains(log, "canary") || strings.Contains(log, "Y2Fu") ||
		strings.Contains(log, "whsec") {
		t.Errorf("the log is %s", log)
	}
	for value, reason := range map[string]string{
		"": "is empty", "x": "does not begin",
		testkit.SealPrivateKey: "does not begin",
	} {
		env["SEAL_PUBLIC_KEY"] = value
		code, out := testkit.Run(t, env)
		if code != 1 || !strings.Contains(out, "SEAL_PUBLIC_KEY "+reason) || !strings.Contains(out, "cloudfnd keys") ||
			strings.Count(out, "\n") != 1 || strings.Contains(out, "sealkey_U") {
			t.Errorf("SEAL_PUBLIC_KEY=%s: %d %s", value, code, out)
		}
	}
	code, out := testkit.Run(t, nil, "keys")
	keys := map[string]string{}
	for line := range strings.Lines(out) {
		name, key, _ := strings.Cut(strings.TrimSpace(line), "=")
		keys[name] = key
	}
	for _, prefix := range []string{"SEAL", "CONNECTION", "MANAGED"} {
		_, err := seal.ParsePublicKey(keys[prefix+"_PUBLIC_KEY"])
		_, err2 := seal.ParsePrivateKeys(domain.Secret(keys[prefix+"_PRIVATE_KEY"]))
		if code != 0 || len(keys) != 6 || err != nil || err2 != nil {
			t.Errorf("keys: %d %s: %v %v", code, out, err, err2)
		}
	}
}

// TestHandshakeAndDelivery runs a daemon: the receiver gets the handshake immediately, and then a signed test event.
func TestHandshakeAndDelivery(t *testing.T) {
	t.Parallel()
	type got struct {
		header http.Header
		body   []byte
	}
	events, consents := make(chan got, 10), make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			consents <- r.URL.Path
			w.Header().Set("WebHook-Allowed-Origin", r.Header.Get("WebHook-Request-Origin"))
			return
		}
		body, _ := io.ReadAll(r.Body)
		events <- got{r.Header, body}
	}))
	t.Cleanup(receiver.Close)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"OS_CLOUD": "demo", "STATS_BACKFILL": "1h"})
	app := testkit.Spawn(t, env).As(testkit.Token(t, "demo"))
	c := create(t, app, `{"url": "`+receiver.URL+`/hook?x=y", "order_id": null}`)
	path := "/v1/callbacks/" + c.ID.String()
	testkit.Eventually(t, 10*time.Second, "the receiver has consented", func() bool {
		var now Callback
		app.Get(t, path).JSON(t, &now)
		return now.Status == domain.CallbackVerified
	})
	if at := <-consents; at != "/hook" {
		t.Errorf("consents was %s", at)
	}
	var rotated shown
	app.Post(t, path+"/secret", "").JSON(t, &rotated)
	var test Delivery
	app.Post(t, path+"/test", "").JSON(t, &test)
	deliver := func() got {
		t.Helper()
		select {
		case e := <-events:
			return e
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was delivered")
		}
		return got{}
	}
	e := deliver()
	for name, secret := range map[string]string{"the secret before": c.Secret, "the new secret": rotated.Secret} {
		wh, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := wh.Verify(e.body, e.header); err != nil {
			t.Errorf("with %s: %v", name, err)
		}
	}
	if e.header.Get("Ce-Id") != test.EventID || e.header.Get("Ce-Type") != domain.CallbackTestEvent ||
		e.header.Get("Ce-Subject") != c.ID.String() {
		t.Errorf("got %v", e.header)
	}
	delivered := func(id uuid.UUID) func() bool {
		return func() bool {
			var list DeliveryPage
			app.Get(t, path+"/deliveries?status=delivered").JSON(t, &list)
			for _, d := range list.Deliveries {
				if d.ID == id && d.Answer == 200 && d.Attempts == 1 {
					return true
				}
			}
			return false
		}
	}
	testkit.Eventually(t, 5*time.Second, "the test is listed as delivered", delivered(test.ID))
	var again Delivery
	app.Post(t, path+"/deliveries/"+test.ID.String()+"/redeliver", "").JSON(t, &again)
	if e := deliver(); e.header.Get("Ce-Id") != test.EventID || e.header.Get("Webhook-Id") != test.EventID {
		t.Errorf("delivered again was %v", e.header)
	}
	testkit.Eventually(t, 5*time.Second, "it is listed as delivered again", delivered(again.ID))
}
