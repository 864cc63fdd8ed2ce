package servers

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestAccessRules: the token of an application credential with access rules is good for the requests that they list, at
// this API and at Nova, each of which enforces its own.
func TestAccessRules(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	here := testkit.AccessRule{Service: "cloudfn", Method: http.MethodGet, Path: "/v1/servers"}
	nova := testkit.AccessRule{Service: "compute", Method: http.MethodGet, Path: "/v2.1/servers/detail"}
	type rules = []testkit.AccessRule
	for name, tc := range map[string]struct {
		rules  []testkit.AccessRule
		method string
		path   string
		status int
		says   string
	}{
		"both":           {rules{here, nova}, http.MethodGet, "/v1/servers", 200, ""},
		"not Nova's":     {rules{here}, http.MethodGet, "/v1/servers", 403, "path /v2.1/servers/detail"},
		"not this API's": {rules{nova}, http.MethodGet, "/v1/servers", 403, "lack service cloudfn, method GET"},
		"another method": {rules{here, nova}, http.MethodPost, "/v1/servers/actions", 403, "method POST"},
	} {
		id, secret := p.AppCredential(t, tc.rules...)
		a := app.As(p.AppCredentialToken(t, id, secret)).Do(t, tc.method, tc.path, "")
		if a.Status != tc.status || !strings.Contains(string(a.Body), tc.says) {
			t.Errorf("%s: got %d %s", name, a.Status, a.Body)
		}
	}
}
