package console

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestHostCookie: over https only the cookie counts that no other site of the domain can set.
func TestHostCookie(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		https        bool
		cookie, want string
	}{
		"https":                {true, hostCookie + "=a; " + cookieName + "=b", "a"},
		"https, another's":     {true, cookieName + "=b", ""},
		"https, given twice":   {true, hostCookie + "=a; " + hostCookie + "=b", ""},
		"plain http":           {false, cookieName + "=b", "b"},
		"behind a quiet proxy": {false, hostCookie + "=a; " + cookieName + "=b", "a"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/console/session", nil)
		r.Header.Set("Cookie", tc.cookie)
		if tc.https {
			r.Header.Set("X-Forwarded-Proto", "https")
		}
		if got := cookieOf(r).Reveal(); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
