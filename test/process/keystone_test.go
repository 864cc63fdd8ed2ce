package process_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestKeystoneAway answers 503, and never 401, for a token that it does not know yet.
func TestKeystoneAway(t *testing.T) {
	t.Parallel()
	keystone := testkit.Redirect(t)
	env := keystone.Env(t, "demo")
	env["FUNCTION_TARGET"] = "stats"
	p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), env))
	known, unknown := testkit.Token(t, "demo"), testkit.Token(t, "alt")
	if a := p.As(known).Get(t, "/v1/stats"); a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	keystone.Close()
	if a := p.As(unknown).Get(t, "/v1/stats"); a.Status != 503 || a.Header.Get("Retry-After") == "" {
		t.Errorf("a token that is not known: got %d %s", a.Status, a.Body)
	}
	if a := p.As(known).Get(t, "/v1/stats"); a.Status != 200 {
		t.Errorf("one that is, within a minute: got %d %s", a.Status, a.Body)
	}
}

// TestTokens rejects tokens that have ended and texts that are no tokens. The allow lists let this one in.
func TestTokens(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	good, revoked, expired := p.Token(t), p.Token(t), p.ExpiredToken(t)
	p.Revoke(t, revoked)
	const path = "/v1/stats"
	c := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{
		"FUNCTION_TARGET": "stats", "ALLOWED_PROJECTS": "p1," + p.ID, "ALLOWED_DOMAINS": p.DomainID,
	}))
	for name, tc := range map[string]struct {
		token string
		want  int
	}{"good": {good, 200}, "revoked": {revoked, 401}, "expired": {expired, 401}, "garbage": {"x", 401}, "8 KiB": {strings.Repeat("x", 8193), 401}} {
		if a := c.As(tc.token).Get(t, path); a.Status != tc.want || tc.want == 401 &&
			!strings.HasPrefix(a.Header.Get("Www-Authenticate"), "Keystone uri=") {
			t.Errorf("%s: got %d %v %s, want %d", name, a.Status, a.Header, a.Body, tc.want)
		}
	}
	if a := c.Get(t, path, "X-Auth-Token", good, "X-Auth-Token", good); a.Status != 401 {
		t.Errorf("two tokens: got %d", a.Status)
	}
	p.Revoke(t, good)
	testkit.Eventually(t, 65*time.Second, "a token revoked meanwhile is refused", func() bool {
		return c.As(good).Get(t, path).Status == 401
	})
}
