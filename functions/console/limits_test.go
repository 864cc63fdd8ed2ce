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
