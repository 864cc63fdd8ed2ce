package servers

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongKeyedReboots: with an Idempotency-Key an action on one server, and one on many, are done once, whatever is
// lost of the first attempt.
func TestLongKeyedReboots(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	servers := p.Boot(t, "keyed", 3)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	for name, tc := range map[string]struct{ path, body string }{
		"one": {"/v1/servers/" + servers[0].ID + "/actions", `{"action": "reboot", "hard": true}`},
		"many": {"/v1/servers/actions", fmt.Sprintf(`{"action": "reboot", "hard": true, "ids": [%q, %q]}`,
			servers[1].ID, servers[2].ID)},
	} {
		key := uuid.NewString()
		send := func() testkit.Answer {
			t.Helper()
			return app.Do(t, "POST", tc.path, tc.body, "Content-Type", "application/json", "Idempotency-Key", key)
		}
		first := send()
		if first.Status != 202 {
			t.Fatalf("%s: got %d %s", name, first.Status, first.Body)
		}
		if a := send(); a.Status != 202 || string(a.Body) != string(first.Body) {
			t.Errorf("%s, again: got %d %s", name, a.Status, a.Body)
		}
		for _, server := range servers {
			p.Await(t, server.ID, "ACTIVE")
		}
		testkit.LeaveRequests(t, conn, testkit.Died)
		if a := send(); a.Status > 202 || a.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%s, died when it was done: got %d %s", name, a.Status, a.Body)
		}
		testkit.LeaveRequests(t, conn, testkit.Died)
		loseResults(t, conn)
		if a := send(); a.Status > 202 {
			t.Errorf("%s, died before its result: got %d %s", name, a.Status, a.Body)
		}
	}
	for _, server := range servers {
		if n := logged(t, server.ID, "reboot"); n != 1 {
			t.Errorf("Nova has rebooted %s %d times", server.ID, n)
		}
	}
}
