package openstack

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sethvargo/go-envconfig"
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

// TestUserAsks Keystone for what the environment says, as OpenStack's own clients do with the same variables.
func TestUserAsks(t *testing.T) {
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
			if diff := cmp.Diff(want, asked(t, s, "/v3/auth/tokens")); diff != "" {
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
