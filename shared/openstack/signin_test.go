package openstack

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// asked decodes what the only request to a path has sent.
func asked(t *testing.T, s *stub, path string) (body any) {
	t.Helper()
	calls := s.to(path)
	if len(calls) != 1 {
		t.Fatalf("%s was called %d times", path, len(calls))
	}
	data, _ := io.ReadAll(calls[0].Body)
	if err := json.Unmarshal(data, &body); err != nil {
		t.Fatal(err)
	}
	if calls[0].Header.Get("X-Auth-Token") != "" {
		t.Error("it was asked with a token in the header")
	}
	return body
}

// TestSignInAsks for what is meant, and never for the user's default project. That the real Keystone takes it is tested
// by the console.
func TestSignInAsks(t *testing.T) {
	t.Parallel()
	login := domain.Login{User: "ann", UserDomain: "d1", Password: "canary-password"}
	named := login
	named.Project, named.ProjectDomain = "web", "d2"
	password := `{"methods":["password"],"password":{"user":{"name":"ann","password":"canary-password","domain":{"name":"d1"}}}}`
	for name, tc := range map[string]struct {
		sign func(*Cloud) (domain.Secret, domain.Identity, error)
		want string
	}{
		"no project": {
			func(c *Cloud) (domain.Secret, domain.Identity, error) { return c.SignIn(t.Context(), login) },
			`{"auth":{"identity":` + password + `,"scope":"unscoped"}}`,
		},
		"a project": {
			func(c *Cloud) (domain.Secret, domain.Identity, error) { return c.SignIn(t.Context(), named) },
			`{"auth":{"identity":` + password + `,"scope":{"project":{"name":"web","domain":{"name":"d2"}}}}}`,
		},
		"chosen by now": {func(c *Cloud) (domain.Secret, domain.Identity, error) {
			return c.Choose(t.Context(), theToken, "p1")
		}, `{"auth":{"identity":{"methods":["token"],"token":{"id":"canary-token"}},"scope":{"project":{"id":"p1"}}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.mux.HandleFunc("POST /v3/auth/tokens", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Subject-Token", "made")
				w.WriteHeader(http.StatusCreated)
				_,
					_ = io.WriteString(w,
					`{"token":{"expires_at":"2026-01-02T03:04:05Z","user":{"id":"u1","name":"ann"},"project":{"id":"p1","name":"web","domain":{"id":"d2"}},"roles":[{"name":"member"}]}}`)
			})
			token, who, err := tc.sign(s.cloud(t, nil))
			if err != nil || token != "made" || who.UserID != "u1" || who.ProjectID != "p1" || who.DomainID != "d2" ||
				!who.Has("member") {
				t.Errorf("%v %+v", err, who)
			}
			var want any
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, asked(t, s, "/v3/auth/tokens")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSignInFails in one and the same way whatever Keystone does not like, and Keystone's own failures are not the
// user's. What it says is not repeated, because it may repeat the password; and nothing is sent twice, because that
// would count as two guesses.
func TestSignInFails(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]apperr.Code{
		400: apperr.Unauthenticated, 401: apperr.Unauthenticated, 403: apperr.Unauthenticated,
		404: apperr.Unauthenticated,
		429: apperr.RateLimited, 500: apperr.Unavailable, 502: apperr.Unavailable, 503: apperr.Unavailable,
		504: apperr.Unavailable,
	} {
		s := newStub(t)
		refusal := fmt.Sprintf(`{"error":{"code":%d,"message":"the account is locked, and the password was canary"}}`,
			status)
		s.answer("POST /v3/auth/tokens", status, refusal)
		_, _, err := s.cloud(t, nil).SignIn(t.Context(), domain.Login{
			User: "ann", UserDomain: "d1", Password: "canary-password",
		})
		if apperr.CodeOf(err) != want || len(s.to("/v3/auth/tokens")) != 1 {
			t.Errorf("%d: got %v after %d calls, want %s", status, err, len(s.to("/v3/auth/tokens")), want)
		}
		if want == apperr.Unauthenticated && (strings.Contains(err.Error(), "canary") ||
			strings.Contains(err.Error(), "locked")) {
			t.Errorf("%d: it says %v", status, err)
		}
	}
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]apperr.Code{
		204: "", 401: "", 404: "", 403: apperr.Forbidden, 503: apperr.Unavailable,
	} {
		s := newStub(t)
		s.answer("DELETE /v3/auth/tokens", status, "")
		if err := s.cloud(t, nil).Revoke(t.Context(), theToken); apperr.CodeOf(err) != want {
			t.Errorf("%d: got %v, want %q", status, err, want)
		}
		if calls := s.to("/v3/auth/tokens"); len(calls) != 1 || calls[0].Header.Get("X-Subject-Token") != theToken ||
			calls[0].Header.Get("X-Auth-Token") != theToken {
			t.Errorf("%d: it was not asked with the token itself", status)
		}
	}
}
