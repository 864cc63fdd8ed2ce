package openstack

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
				t.Errorf("it was asked %s with %v", calls[0].URL, h)
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
		"away":                     {503, `canary`, apperr.Unavailable},
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
	t.Run("nobody listens", func(t *testing.T) {
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
