package console

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSignInsAreLimited by all replicas together, whether they succeed or not.
func TestSignInsAreLimited(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"SIGN_IN_RATE_LIMIT": "2"})
	one, two := testkit.Start(t, env, Function), testkit.Start(t, env, Function)
	signInTo(t, one, password(p, ""))
	b := &browser{Client: two}
	for n, want := range []int{401, 429} {
		if a := b.ask(t, "POST", "/console/session", `{"user": "nobody", "password": "x"}`); a.Status != want {
			t.Errorf("sign-in %d: got %d %s", n, a.Status, a.Body)
		}
	}
	if a := (&browser{Client: one}).ask(t, "POST", "/console/session", password(p, "")); a.Status != 429 ||
		a.Header.Get("RateLimit-Policy") != `"sign-in";q=2;w=60` {
		t.Errorf("the first replica: got %d %v", a.Status, a.Header)
	}
}

// TestSessionsDoNotShareAnAddress: many users may be behind one. Who is not signed in counts for it.
func TestSessionsDoNotShareAnAddress(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"ADDRESS_RATE_LIMIT": "1"})
	one, two := testkit.Start(t, env, Function), testkit.Start(t, env, Function)
	signedIn := signInTo(t, one, password(p, ""))
	for _, app := range []*testkit.Client{one, two} {
		b := &browser{app, signedIn.cookie}
		for n := range 130 {
			// The second one has the process send itself another, of an unknown token.
			for path, want := range map[string]int{"/console/session": 200, "/console/api/v1/nothing": 404} {
				if a := b.ask(t, "GET", path, ""); a.Status != want {
					t.Fatalf("request %d: got %d %s", n, a.Status, a.Body)
				}
			}
		}
	}
	if a := signedIn.ask(t, "DELETE", "/console/session", ""); a.Status != 204 {
		t.Fatalf("signing out: got %d %s", a.Status, a.Body)
	}
	b := &browser{two, signedIn.cookie}
	if a := b.ask(t, "GET", "/console/session", ""); a.Status != 401 {
		t.Errorf("an ended session: got %d %s", a.Status, a.Body)
	}
	status := 0
	for n := 0; status != 429 && n < 1000; n++ {
		status = b.ask(t, "GET", "/console/session", "").Status
	}
	if status != 429 {
		t.Errorf("without a session: got %d", status)
	}
}
