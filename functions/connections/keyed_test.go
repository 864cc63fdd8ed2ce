package connections

import (
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestKeyedCrashPoints: whenever a replica dies, a connection and a request for one are there once, however often they
// are sent with their key, and their events wait for no tick. No trust is left but the connection's, and those that
// run-connections revokes.
func TestKeyedCrashPoints(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]struct {
		path, table string
		body        func(parties) string
	}{
		"connection": {"/v1/connections", "connections", func(parties) string { return asking("trust", "") }},
		"request":    {requestsPath, "connection_requests", func(p parties) string { return p.asked("") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParties(t)
			key, body := uuid.NewString(), op.body(p)
			once := func(when string, want int, isReplayed bool) (made struct{ ID uuid.UUID }) {
				t.Helper()
				var a testkit.Answer
				send := func() {
					a = p.program.Do(t, "POST", op.path, body, "Content-Type", "application/json",
						"Idempotency-Key", key)
				}
				if want != 201 || isReplayed {
					send()
				} else {
					p.woken.After(t, "deliver-events", when, send)
				}
				if a.JSON(t, &made); a.Status != want || (a.Header.Get("Idempotency-Replayed") != "") != isReplayed {
					t.Errorf("%s: got %d %s", when, a.Status, a.Body)
				}
				if n := testkit.Scalar[int](t, p.conn, "select count(*)::int from "+op.table); n != 1 {
					t.Errorf("%s: it is there %d times", when, n)
				}
				return made
			}
			first := once("first", 201, false)
			once("stored", 201, true)
			testkit.LeaveRequests(t, p.conn, testkit.AtWork)
			once("at work", 409, false)
			testkit.LeaveRequests(t, p.conn, testkit.Died)
			if again := once("died when it was done", 201, false); again != first {
				t.Errorf("it made %s, and then %s", first.ID, again.ID)
			}
			if op.table == "connections" {
				onlyTrust(t, p.programs)
			}
			// A replica died before it stored the row: it has announced the trust, if Keystone made one.
			for _, sql := range []string{"delete from events", "delete from " + op.table} {
				if _, err := p.conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			testkit.LeaveRequests(t, p.conn, testkit.Died)
			if again := once("died before", 201, false); again != first {
				t.Errorf("it made %s, and then %s", first.ID, again.ID)
			}
		})
	}
}

// TestKeyedGrant: a grant needs no key, because a repeated one is recognized. A header changes nothing.
func TestKeyedGrant(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	var r ConnectionRequest
	p.woken.After(t, "deliver-events", "a request", func() { r = p.ask(t, "") })
	for n, want := range []int{201, 200} {
		var a testkit.Answer
		p.woken.After(t, "deliver-events", "a grant", func() { // also when the first one's replica died before it
			a = p.owner.Do(t, "POST", requestsPath+"/"+r.ID.String()+"/grant", `{"kind": "trust"}`, "Content-Type",
				"application/json", "Idempotency-Key", uuid.NewString())
		})
		if a.Status != want || a.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%d: got %d %s", n, a.Status, a.Body)
		}
	}
}
