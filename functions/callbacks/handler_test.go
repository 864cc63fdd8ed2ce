package callbacks

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

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
		t.Error("its handshake is not due at once")
	}
	if !testkit.Scalar[bool](t, conn,
		"select next_at <= now() and attempts = 0 and failing_since is null and head < tail from streams where "+
			"callback_id = $1", c.ID) {
		t.Error("what waited is not tried anew")
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
