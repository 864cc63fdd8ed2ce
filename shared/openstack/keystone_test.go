package openstack

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

const flask404 = "<!doctype html>\n<html lang=en>\n<title>404 Not Found</title>\n<h1>Not Found</h1>\n"

// TestAWrongAuthURLIsNoWordAboutTheToken: whatever answers at a wrong OS_AUTH_URL, callers get 503 and the log names
// the URL. The answers are those of the sandbox's Keystone under another path, of its Nova, and of a web server.
func TestAWrongAuthURLIsNoWordAboutTheToken(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status        int
		body          string
		documentCode  int
		documentBody  string
		want          apperr.Code
		wantInTheLogs string
	}{
		"Keystone under another path": {404, flask404, 404, flask404, apperr.Unavailable, "/v3/ is not Keystone"},
		"another service": {
			401, `{"error":{"code":401,"message":"The request you have made requires authentication."}}`, 200,
			`{"version":{"id":"v2.1"}}`, apperr.Unavailable, "/v3/ is not Keystone",
		},
		"a web server": {
			403, `<html>no</html>`, 200, `<html>welcome</html>`, apperr.Unavailable, "/v3/ is not Keystone",
		},
		"Keystone away meanwhile": {404, flask404, 503, "", apperr.Unavailable, "keystone is not available"},
		"Keystone, access rules": {
			404, `{"error":{"code":404,"message":"Failed to validate token"}}`, 200, keystoneDocument,
			apperr.Unauthenticated, "",
		},
		"Keystone, a bad token": {
			401, `{"error":{"code":401,"message":"no"}}`, 200, keystoneDocument, apperr.Unauthenticated, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /at/v3/auth/tokens", tc.status, tc.body)
			s.answer("GET /at/v3/{$}", tc.documentCode, tc.documentBody)
			cloud := s.cloud(t, func(c *Config) { c.AuthURL = s.url + "/at" })
			_, err := cloud.Validate(t.Context(), theToken)
			if apperr.CodeOf(err) != tc.want || !strings.Contains(err.Error(), tc.wantInTheLogs) {
				t.Errorf("got %s: %v", apperr.CodeOf(err), err)
			}
			if message := apperr.As(err).Message; strings.Contains(message, s.url) || tc.want == apperr.Unavailable &&
				!strings.Contains(message, "keystone") {
				t.Errorf("the caller is shown %q", message)
			}
			_, _ = cloud.Validate(t.Context(), theToken)
			if n := len(s.to("/at/v3/")); tc.want == apperr.Unauthenticated && n != 1 {
				t.Errorf("the version document was read %d times: it is remembered", n)
			}
		})
	}
}

// TestReachable: only a version document of Keystone's API 3 says that Keystone is there, and it takes no token.
func TestReachable(t *testing.T) {
	t.Parallel()
	choices := `{"versions":{"values":[{"id":"v3.14"}]}}`
	for name, tc := range map[string]struct {
		status int
		body   string
		want   apperr.Code
	}{
		"API 3":           {200, keystoneDocument, ""},
		"choices":         {300, choices, ""},
		"API 2 only":      {300, `{"versions":{"values":[{"id":"v2.0"}]}}`, apperr.Unavailable},
		"Nova":            {200, `{"version":{"id":"v2.1"}}`, apperr.Unavailable},
		"a page":          {200, "<html></html>", apperr.Unavailable},
		"away":            {503, "", apperr.Unavailable},
		"no such page":    {404, flask404, apperr.Unavailable},
		"another path's":  {http.StatusFound, "", apperr.Unavailable},
		"an empty object": {200, `{}`, apperr.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /at/v3/", tc.status, tc.body)
			if err := s.cloud(t, func(c *Config) {
				c.AuthURL = s.url +
					"/at"
			}).Reachable(t.Context()); apperr.CodeOf(err) != tc.want {
				t.Errorf("got %v", err)
			}
			if r := s.calls[0]; r.Header.Get("X-Auth-Token") != "" {
				t.Errorf("a token was sent: %v", r.Header)
			}
		})
	}
}
