package callbacks

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
