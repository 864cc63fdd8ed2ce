package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// userOf reads an environment, in which KEYSTONE is where the stub is.
func userOf(t *testing.T, s *stub, env map[string]string) (*User, error) {
	t.Helper()
	for name, value := range env {
		env[name] = strings.ReplaceAll(value, "KEYSTONE", s.url+"/v3")
	}
	var cfg UserConfig
	if err := envconfig.ProcessWith(t.Context(), &envconfig.Config{
		Target:   &cfg,
		Lookuper: envconfig.MapLookuper(env),
	}); err != nil {
		t.Fatal(err)
	}
	return NewUser(cfg, Options{})
}

// TestLoginOfTheEnvironment logs in with what the environment says, as OpenStack's own clients do with the same
// variables.
func TestLoginOfTheEnvironment(t *testing.T) {
	t.Parallel()
	const password = `"identity":{"methods":["password"],"password":{"user":{"name":"ann","password":"canary","domain":{%s}}}}`
	inDefault := fmt.Sprintf(password, `"id":"default"`)
	for name, tc := range map[string]struct {
		env  map[string]string
		want string
	}{
		"no domains": {
			map[string]string{"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_PROJECT_NAME": "web"},
			inDefault + `,"scope":{"project":{"name":"web","domain":{"id":"default"}}}`,
		},
		"no project": {map[string]string{"OS_USERNAME": "ann", "OS_PASSWORD": "canary"}, inDefault},
		"the user's domain": {
			map[string]string{
				"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_USER_DOMAIN_NAME": "d", "OS_PROJECT_NAME": "web",
			}, fmt.Sprintf(password, `"name":"d"`) + `,"scope":{"project":{"name":"web","domain":{"name":"d"}}}`,
		},
		"two domains": {
			map[string]string{
				"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_USER_DOMAIN_ID": "d1",
				"OS_PROJECT_DOMAIN_NAME": "d2", "OS_PROJECT_NAME": "web",
			}, fmt.Sprintf(password, `"id":"d1"`) + `,"scope":{"project":{"name":"web","domain":{"name":"d2"}}}`,
		},
		"a domain by id and name": {
			map[string]string{
				"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_USER_DOMAIN_ID": "d1",
				"OS_USER_DOMAIN_NAME": "other",
			}, fmt.Sprintf(password, `"id":"d1"`),
		},
		"one domain for both": {
			map[string]string{
				"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_DOMAIN_NAME": "d", "OS_PROJECT_NAME": "web",
			}, fmt.Sprintf(password, `"name":"d"`) + `,"scope":{"project":{"name":"web","domain":{"name":"d"}}}`,
		},
		"a project by id": {
			map[string]string{
				"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_PROJECT_ID": "p1", "OS_PROJECT_NAME": "web",
			}, inDefault + `,"scope":{"project":{"id":"p1"}}`,
		},
		"a tenant": {
			map[string]string{"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_TENANT_NAME": "web"},
			inDefault + `,"scope":{"project":{"name":"web","domain":{"id":"default"}}}`,
		},
		"a tenant by id": {
			map[string]string{
				"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_TENANT_ID": "p1", "OS_TENANT_NAME": "web",
			}, inDefault + `,"scope":{"project":{"id":"p1"}}`,
		},
		"a user by id": {
			map[string]string{"OS_USER_ID": "u1", "OS_PASSWORD": "canary", "OS_USER_DOMAIN_ID": "d1"},
			`"identity":{"methods":["password"],"password":{"user":{"id":"u1","password":"canary"}}}`,
		},
		"the system": {
			map[string]string{"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_SYSTEM_SCOPE": "all"},
			inDefault + `,"scope":{"system":{"all":true}}`,
		},
		"a trust": {
			map[string]string{"OS_USERNAME": "ann", "OS_PASSWORD": "canary", "OS_TRUST_ID": "t1"},
			inDefault + `,"scope":{"OS-TRUST:trust":{"id":"t1"}}`,
		},
		"a credential": {
			map[string]string{
				"OS_APPLICATION_CREDENTIAL_ID": "c1", "OS_APPLICATION_CREDENTIAL_SECRET": "canary",
				"OS_USERNAME": "ann", "OS_PROJECT_NAME": "web",
			}, `"identity":{"methods":["application_credential"],"application_credential":{"id":"c1","secret":"canary"}}`,
		},
		"a credential by name": {
			map[string]string{
				"OS_APPLICATION_CREDENTIAL_NAME": "c", "OS_APPLICATION_CREDENTIAL_SECRET": "canary",
				"OS_USERNAME": "ann", "OS_USER_DOMAIN_ID": "d1",
			}, `"identity":{"methods":["application_credential"],"application_credential":{"name":"c","secret":"canary","user":{"name":"ann","domain":{"id":"d1"}}}}`,
		},
		"a token for a project": {
			map[string]string{"OS_TOKEN": "canary", "OS_PROJECT_ID": "p1"},
			`"identity":{"methods":["token"],"token":{"id":"canary"}},"scope":{"project":{"id":"p1"}}`,
		},
		"clouds.yaml": {
			map[string]string{"OS_CLOUD": "here", "OS_USERNAME": "other"},
			inDefault + `,"scope":{"project":{"name":"web","domain":{"id":"default"}}}`,
		},
		"a password beside a cloud": {
			map[string]string{"OS_CLOUD": "asks", "OS_PASSWORD": "canary"},
			inDefault + `,"scope":{"project":{"id":"p1"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.mux.HandleFunc("POST /v3/auth/tokens", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Subject-Token", "made")
				w.WriteHeader(http.StatusCreated)
				_,
					_ = io.WriteString(w,
					`{"token":{"expires_at":"2026-01-02T03:04:05Z","user":{"id":"u1","name":"ann"}}}`)
			})
			tc.env["OS_AUTH_URL"] = "KEYSTONE"
			tc.env["OS_CLIENT_CONFIG_FILE"] = cloudsFile(t, s)
			user, err := userOf(t, s, tc.env)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(user.Name(), "canary") {
				t.Errorf("what its token is kept under is %q", user.Name())
			}
			token, who, err := user.Login(t.Context())
			if err != nil || token != "made" || who.UserID != "u1" {
				t.Fatalf("%v %+v", err, who)
			}
			var want any
			if err := json.Unmarshal([]byte(`{"auth":{`+tc.want+`}}`), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, sentTo(t, s, "/v3/auth/tokens")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// cloudsFile is a clouds.yaml with secure.yaml beside it, as those have it who keep passwords apart.
func cloudsFile(t *testing.T, s *stub) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"clouds.yaml": `clouds:
  here: {auth: {auth_url: KEYSTONE, username: ann, project_name: web}}
  asks: {auth: {auth_url: KEYSTONE, username: ann, project_id: p1}}
  federated: {auth_type: v3oidcpassword, auth: {auth_url: KEYSTONE, username: ann, password: canary}}
  empty: {}
`,
		"secure.yaml": "clouds: {here: {auth: {password: canary}}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "KEYSTONE", s.url+"/v3")),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "clouds.yaml")
}

// TestUserIsRefused before anybody is called, and the error names what has to be set.
func TestUserIsRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  map[string]string
		want string
	}{
		"another way to log in": {
			map[string]string{"OS_AUTH_URL": "KEYSTONE", "OS_AUTH_TYPE": "v3oidcpassword"}, "OS_AUTH_TYPE",
		},
		"such a cloud":            {map[string]string{"OS_CLOUD": "federated"}, "auth_type of the cloud federated"},
		"a cloud with nothing":    {map[string]string{"OS_CLOUD": "empty"}, "empty"},
		"a cloud that is unknown": {map[string]string{"OS_CLOUD": "unknown"}, "unknown"},
		"no URL":                  {map[string]string{"OS_AUTH_URL": "keystone.example.com"}, "OS_AUTH_URL"},
		"no such interface": {
			map[string]string{"OS_AUTH_URL": "KEYSTONE", "OS_INTERFACE": "outside"}, "OS_INTERFACE",
		},
	} {
		s := newStub(t)
		tc.env["OS_CLIENT_CONFIG_FILE"] = cloudsFile(t, s)
		if _, err := userOf(t, s, tc.env); err == nil || !strings.Contains(err.Error(), tc.want) ||
			strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: got %v", name, err)
		}
		if len(s.calls) != 0 {
			t.Errorf("%s: %d calls were made", name, len(s.calls))
		}
	}
}

// TestUserHasAToken that may be used as it is; and a user without only a password is prompted for it.
func TestUserHasAToken(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env           map[string]string
		given         string
		needsPassword bool
	}{
		"a token": {map[string]string{"OS_TOKEN": "given"}, "given", false},
		"a token and password": {
			map[string]string{"OS_TOKEN": "given", "OS_USERNAME": "ann", "OS_PASSWORD": "p"}, "", false,
		},
		"no password": {map[string]string{"OS_USERNAME": "ann"}, "", true},
		"a credential": {
			map[string]string{"OS_APPLICATION_CREDENTIAL_ID": "c1", "OS_APPLICATION_CREDENTIAL_SECRET": "s"}, "", false,
		},
	} {
		tc.env["OS_AUTH_URL"] = "KEYSTONE"
		user, err := userOf(t, newStub(t), tc.env)
		if err != nil || user.Given().Reveal() != tc.given || user.NeedsPassword() != tc.needsPassword {
			t.Errorf("%s: %v, given %q, needs a password: %v", name, err, user.Given().Reveal(), user.NeedsPassword())
		}
	}
}

// TestKeptSession: a session is used for keptFor, and until Keystone rejects it. A caller that waits for a login stops
// waiting with its context.
func TestKeptSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logins, slow := 0, time.Duration(0)
		k := &Kept[int]{login: func(context.Context) (int, error) {
			time.Sleep(slow)
			logins++
			return logins, nil
		}}
		wants := func(want int) {
			t.Helper()
			if got, err := k.Session(t.Context()); got != want || err != nil {
				t.Errorf("got session %d, want %d: %v", got, want, err)
			}
		}
		wants(1)
		time.Sleep(keptFor - time.Second)
		wants(1)
		time.Sleep(time.Second)
		wants(2)
		k.Forget(apperr.New(apperr.Unavailable, "unavailable"))
		wants(2)
		k.Forget(apperr.New(apperr.Unauthenticated, "revoked"))
		slow = time.Minute
		go func() { _, _ = k.Session(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := k.Session(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.Sleep(time.Hour)
	})
}

// sentTo decodes what the only request to a path has sent.
func sentTo(t *testing.T, s *stub, path string) (body any) {
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
		t.Error("it was called with a token in the header")
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
			if diff := cmp.Diff(want, sentTo(t, s, "/v3/auth/tokens")); diff != "" {
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
			t.Errorf("%d: it was not called with the token itself", status)
		}
	}
}
