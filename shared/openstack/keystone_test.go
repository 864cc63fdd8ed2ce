package openstack

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const user = `"expires_at":"2026-01-02T03:04:05.000000Z","user":{"id":"u1","name":"ann","domain":{"id":"d9"}},"roles":[{"id":"r","name":"member"},{"id":"s","name":"reader"}]`
	roles := []string{"member", "reader"}
	for name, tc := range map[string]struct {
		body string
		want domain.Identity
	}{
		"a project": {
			`{"token":{` + user +
				`,"project":{"id":"p1","name":"web","domain":{"id":"d1","name":"x"}},"is_domain":false,"catalog":[]}}`,
			domain.Identity{
				UserID: "u1", UserName: "ann", ProjectID: "p1", ProjectName: "web", DomainID: "d1", Roles: roles,
				ExpiresAt: end,
			},
		},
		"a domain": {
			`{"token":{` + user + `,"domain":{"id":"d1","name":"x"}}}`,
			domain.Identity{UserID: "u1", UserName: "ann", DomainID: "d1", Roles: roles, ExpiresAt: end},
		},
		"the system": {
			`{"token":{` + user + `,"system":{"all":true}}}`,
			domain.Identity{UserID: "u1", UserName: "ann", System: true, Roles: roles, ExpiresAt: end},
		},
		"access rules": {
			`{"token":{` + user + `,"system":{"all":true},"application_credential":{"id":"c","restricted":true,"access_rules":[{"id":"r","service":"cloudfn","method":"GET","path":"/v1/**"}]}}}`,
			domain.Identity{
				UserID: "u1", UserName: "ann", System: true, Roles: roles, ExpiresAt: end,
				AccessRules: []domain.AccessRule{{Service: "cloudfn", Method: "GET", Path: "/v1/**"}},
			},
		},
		"an application credential without rules": {
			`{"token":{` + user + `,"system":{"all":true},"application_credential":{"id":"c","restricted":true}}}`,
			domain.Identity{UserID: "u1", UserName: "ann", System: true, Roles: roles, ExpiresAt: end},
		},
		"no scope": {
			`{"token":{"expires_at":"2026-01-02T03:04:05Z","user":{"id":"u1","name":"ann"}}}`,
			domain.Identity{UserID: "u1", UserName: "ann", ExpiresAt: end},
		},
		"nulls": {
			`{"token":{"expires_at":"2026-01-02T03:04:05Z","user":{"id":"u1","name":null},"project":null,"domain":null,"system":null,"roles":null,"trust":null}}`,
			domain.Identity{UserID: "u1", ExpiresAt: end},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /v3/auth/tokens", 200, tc.body)
			got, err := s.cloud(t, nil).Validate(t.Context(), theToken)
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
			calls := s.to("/v3/auth/tokens")
			if len(calls) != 1 || len(s.calls) != 1 {
				t.Fatalf("there were %d calls", len(s.calls))
			}
			// With the token itself, without the catalog, and with the promise to honor access rules.
			h := calls[0].Header
			if h.Get("X-Auth-Token") != theToken || h.Get("X-Subject-Token") != theToken ||
				calls[0].URL.RawQuery != "nocatalog" ||
				h.Get("Openstack-Identity-Access-Rules") != "1.0" || h.Get("X-Openstack-Request-Id") != reqID {
				t.Errorf("it got %s with %v", calls[0].URL, h)
			}
		})
	}
}

// TestValidateFails: what Keystone says against the token is 401, and its own trouble never is.
func TestValidateFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		body   string
		want   apperr.Code
	}{
		"unknown": {
			401, `{"error":{"code":401,"message":"The request you have made requires authentication."}}`,
			apperr.Unauthenticated,
		},
		"unknown to a Keystone that does not enforce access rules": {
			404, `{"error":{"code":404,"message":"Could not find token: canary."}}`, apperr.Unauthenticated,
		},
		"may not look at itself":   {403, `{"error":{"code":403,"message":"canary"}}`, apperr.Forbidden},
		"malformed":                {400, `{"error":{"code":400,"message":"canary"}}`, apperr.Unauthenticated},
		"Keystone's fault":         {500, `canary`, apperr.Unavailable},
		"a proxy's 401":            {401, `<html>canary</html>`, apperr.Unavailable},
		"a proxy's 403":            {403, `canary`, apperr.Unavailable},
		"a gateway's 404":          {404, `{"message":"canary"}`, apperr.Unavailable},
		"a proxy's fault":          {502, `canary`, apperr.Unavailable},
		"unavailable":              {503, `canary`, apperr.Unavailable},
		"a proxy gave up":          {504, `canary`, apperr.Unavailable},
		"a redirect":               {302, `canary`, apperr.Unavailable},
		"too many requests":        {429, `{"error":{"message":"wait"}}`, apperr.RateLimited},
		"HTML with 200":            {200, `<html>canary</html>`, apperr.Unavailable},
		"cut off":                  {200, `{"token":{"user":{"id":"u1"`, apperr.Unavailable},
		"a token without a user":   {200, `{"token":{}}`, apperr.BadGateway},
		"nothing":                  {200, `{}`, apperr.BadGateway},
		"an end that is no time":   {200, `{"token":{"expires_at":"soon","user":{"id":"u1"}}}`, apperr.Unavailable},
		"a status of another kind": {418, `canary`, apperr.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /v3/auth/tokens", tc.status, tc.body)
			who, err := s.cloud(t, nil).Validate(t.Context(), theToken)
			if apperr.CodeOf(err) != tc.want || who.UserID != "" {
				t.Errorf("got %+v %v", who, err)
			}
			if e := apperr.As(err); strings.Contains(e.Message, "canary") || tc.want == apperr.Unavailable &&
				e.RetryAfter <= 0 {
				t.Errorf("the caller is shown %q, again in %s", e.Message, e.RetryAfter)
			}
			if strings.Contains(err.Error(), theToken) {
				t.Errorf("the log shows the token: %v", err)
			}
		})
	}
	t.Run("no one listens", func(t *testing.T) {
		t.Parallel()
		cloud, err := New(Config{AuthURL: "http://127.0.0.1:1", Interface: "public"}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cloud.Validate(t.Context(), theToken); apperr.CodeOf(err) != apperr.Unavailable {
			t.Errorf("got %v", err)
		}
		if err := cloud.Reachable(t.Context()); apperr.CodeOf(err) != apperr.Unavailable {
			t.Errorf("reachable: got %v", err)
		}
	})
}

// TestLogin takes the token and the catalog out of one answer, and sends no other token along.
func TestLogin(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.mux.HandleFunc("POST /v3/auth/tokens", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Subject-Token", theToken)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"token":{"user":{"id":"u1"},"project":{"id":"p1","domain":{"id":"d1"}},` +
			strings.TrimPrefix(s.catalog("compute"), "{") + `}`))
	})
	s.answer("GET /compute/servers/id", 200, `{"server":{"id":"id"}}`)
	account, err := s.cloud(t, nil).Account(Config{}, Credentials{
		Username: "svc", Password: "canary-password", UserDomain: "Default", Project: "service", ProjectDom: "Default",
	})
	if err != nil {
		t.Fatal(err)
	}
	session, err := account.Login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := read(t.Context(), session); err != nil {
		t.Error(err)
	}
	if same, err := session.In(t.Context(), "p1"); err != nil || same != session {
		t.Errorf("its own project: %v", err)
	}
	if _, err := session.In(t.Context(), "p2"); err != nil {
		t.Error(err)
	}
	logins := s.to("/v3/auth/tokens")
	if len(logins) != 2 || len(s.to("/v3/auth/catalog")) != 0 ||
		s.to("/compute/servers/id")[0].Header.Get("X-Auth-Token") != theToken {
		t.Errorf("there were %d logins, and the catalog was read %d times", len(logins), len(s.to("/v3/auth/catalog")))
	}
	want := map[string]any{"auth": map[string]any{
		"identity": map[string]any{"methods": []any{"token"}, "token": map[string]any{"id": theToken}},
		"scope":    map[string]any{"project": map[string]any{"id": "p2"}},
	}}
	if diff := cmp.Diff(want, bodyOf(t, logins[1])); diff != "" {
		t.Errorf("without the password: %s", diff)
	}
	for _, r := range logins {
		if r.Header.Get("X-Auth-Token") != "" {
			t.Error("a login carried a token in its header")
		}
	}
}

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
		"Keystone unavailable meanwhile": {404, flask404, 503, "", apperr.Unavailable, "keystone is not available"},
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
		"unavailable":     {503, "", apperr.Unavailable},
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

// TestTimesOfKeystone: the forms that Zed writes, and those of other releases.
func TestTimesOfKeystone(t *testing.T) {
	t.Parallel()
	whole := time.Date(2026, 11, 22, 7, 17, 56, 0, time.UTC)
	exact := whole.Add(716060 * time.Microsecond)
	for text, want := range map[string]time.Time{
		`"2026-11-22T07:17:56.000000Z"`: whole, `"2026-11-22T07:17:56Z"`: whole, `"2026-11-22T07:17:56"`: whole,
		`"2026-11-22T07:17:56.716060"`: exact, `"2026-11-22T07:17:56.716060Z"`: exact,
		`"2026-11-22T08:17:56.71606+01:00"`: exact,
		`"2026-11-22T07:17:56+0000"`:        whole, `"2026-11-22 07:17:56"`: whole, `null`: {},
	} {
		var got keystoneTime
		if err := json.Unmarshal([]byte(text), &got); err != nil || !got.Equal(want) {
			t.Errorf("%s: got %s %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{`"soon"`, `""`, `5`, `"2026-11-22"`, `"2026-13-22T07:17:56"`} {
		var got keystoneTime
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s is read as %s", text, got)
		}
	}
}

// TestProjects falls back to the user's own where the policy does not let it list all.
func TestProjects(t *testing.T) {
	t.Parallel()
	const list = `{"projects":[{"id":"p1","name":"a","domain_id":"d1","enabled":true},{"id":"p2","domain_id":"d1","enabled":false},
		{"id":"p3","domain_id":"d2","enabled":true},{"id":"d1","domain_id":"d1","enabled":true,"is_domain":true}],"links":{"next":null}}`
	for name, status := range map[string]int{"may list": 200, "may not": 403} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /v3/projects", status, list)
			s.answer("GET /v3/auth/projects", 200, list)
			got, err := s.session(t).Projects(t.Context(), "d1")
			if diff := cmp.Diff([]domain.Project{{ID: "p1", Name: "a", DomainID: "d1"}}, got); err != nil ||
				diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// cutOff is a Keystone whose list_limit is 2, with 4 projects in two domains. The sandbox's has no limit.
func cutOff(t *testing.T) *stub {
	t.Helper()
	s := newStub(t)
	one := func(id, domainID string) string {
		return fmt.Sprintf(`{"id":%q,"name":"n-%s","domain_id":%q,"enabled":true}`, id, id, domainID)
	}
	s.answer("GET /v3/projects", 200, `{"projects":[`+one("p1", "d1")+`,`+one("p2",
		"d2")+`],"links":{"next":null},"truncated":true}`)
	s.answer("GET /v3/auth/projects", 200, `{"projects":[`+one("p1", "d1")+`,`+one("p3",
		"d1")+`],"links":{"next":null}}`)
	s.answer("GET /v3/projects/d1", 200, `{"project":{"id":"d1","subtree":{"p1":{"p4":null,"gone":{}},"p3":null}}}`)
	s.answer("GET /v3/projects/d2", 200, `{"project":{"id":"d2","subtree":{"p2":null,"off":null}}}`)
	s.answer("GET /v3/projects/p4", 200, `{"project":`+one("p4", "d1")+`}`)
	s.answer("GET /v3/projects/off", 200, `{"project":`+strings.Replace(one("off", "d2"), "true", "false", 1)+`}`)
	return s
}

// TestTruncatedProjects: what Keystone cuts off is found by the trees of its domains; where it cannot be, that is an
// error.
func TestTruncatedProjects(t *testing.T) {
	t.Parallel()
	const domains = `{"domains":[{"id":"d1"},{"id":"d2"}],"links":{"next":null}`
	for name, tc := range map[string]struct {
		domainID string
		change   func(*stub)
		want     []string
		code     apperr.Code
	}{
		"the whole cloud": {
			"", func(s *stub) { s.answer("GET /v3/domains", 200, domains+`}`) }, []string{"p1", "p2", "p3", "p4"}, "",
		},
		"a domain": {"d1", func(*stub) {}, []string{"p1", "p3", "p4"}, ""},
		"too many domains": {
			"", func(s *stub) { s.answer("GET /v3/domains", 200, domains+`,"truncated":true}`) }, nil,
			apperr.BadGateway,
		},
		"domains are not shown": {"", func(s *stub) { s.answer("GET /v3/domains", 403, `{}`) }, nil, apperr.Forbidden},
		"the tree is not shown": {
			"d3", func(s *stub) { s.answer("GET /v3/projects/d3", 403, `{}`) }, nil, apperr.Forbidden,
		},
		"a project does not come": {"d3", func(s *stub) {
			s.answer("GET /v3/projects/d3", 200, `{"project":{"subtree":{"p9":null}}}`)
			s.answer("GET /v3/projects/p9", 503, ``)
		}, nil, apperr.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cutOff(t)
			tc.change(s)
			got, err := s.session(t).Projects(t.Context(), tc.domainID)
			var ids []string
			for _, p := range got {
				ids = append(ids, p.ID)
			}
			if diff := cmp.Diff(tc.want, ids, cmpopts.SortSlices(strings.Compare)); diff != "" ||
				apperr.CodeOf(err) != tc.code {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// TestKnowsProject: only Keystone's own 404 reports that a project is deleted.
func TestKnowsProject(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		body   string
		want   apperr.Code
	}{
		"it is there": {200, `{"project":{"id":"p1"}}`, ""},
		"it is deleted": {
			404, `{"error":{"code":404,"message":"Could not find project: p1.","title":"Not Found"}}`, apperr.NotFound,
		},
		"a proxy's 404": {
			404, `<html><body>The requested URL /v3/projects/p1 was not found</body></html>`, apperr.Unavailable,
		},
		"who may not": {
			403, `{"error":{"code":403,"message":"You are not authorized.","title":"Forbidden"}}`, apperr.Forbidden,
		},
		"another's JSON": {404, `{"message":"no Route matched with those values"}`, apperr.Unavailable},
	} {
		s := loginStub(t, member)
		s.answer("GET /v3/projects/p1", tc.status, tc.body)
		if err := s.session(t).CheckProject(t.Context(), "p1"); apperr.CodeOf(err) != tc.want {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
