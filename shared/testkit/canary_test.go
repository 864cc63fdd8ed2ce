package testkit

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/run"
)

func TestMain(m *testing.M) {
	defer RemoveBinary()
	m.Run()
}

// watched is a test that is expected to fail: it notes what it is blamed for.
type watched struct {
	testing.TB
	ends   []func()
	blamed []string
}

// Cleanup keeps what is to be done at the end.
func (w *watched) Cleanup(f func()) { w.ends = append(w.ends, f) }

// Errorf keeps the blame.
func (w *watched) Errorf(format string, args ...any) {
	w.blamed = append(w.blamed, fmt.Sprintf(format, args...))
}

// end is the end of the test that is watched.
func (w *watched) end() {
	for len(w.ends) > 0 {
		last := len(w.ends) - 1
		end := w.ends[last]
		w.ends = w.ends[:last]
		end()
	}
}

// TestASecretIsFoundInTheDatabase, however it is written there, and the test that left it fails.
func TestASecretIsFoundInTheDatabase(t *testing.T) {
	t.Parallel()
	secret := Canary("kept-" + uuid.NewString())
	project := NewProject(t)
	token := project.Token(t)
	_, credential := project.AppCredential(t)
	encoded := base64.StdEncoding.EncodeToString
	for name, tc := range map[string]struct{ value, kind string }{
		"nothing":                     {"this is no secret of anybody", ""},
		"a secret":                    {"before " + secret + " behind", "a test's secret"},
		"in hex":                      {fmt.Sprintf("%x", "x"+secret), "a test's secret"},
		"in base64":                   {encoded([]byte(secret)), "a test's secret"},
		"in base64, one byte behind":  {encoded([]byte("#" + secret)), "a test's secret"},
		"in base64, two bytes behind": {encoded([]byte("#!" + secret + "!")), "a test's secret"},
		"a token":                     {token, "a Keystone token"},
		"a part of a token":           {token[:20], "a Keystone token"},
		"a password":                  {project.password, "a password"},
		"a credential":                {credential, "an application credential's secret"},
		"a key":                       {SealPrivateKey, "SEAL_PRIVATE_KEY"},
		"another key":                 {ConnectionPrivateKey, "CONNECTION_PRIVATE_KEY"},
		"a third key":                 {ManagedPrivateKey, "MANAGED_PRIVATE_KEY"},
		"the key of events":           {EventKey, "EVENT_KEY"},
		"a key pair":                  {"-----BEGIN PRIVATE KEY-----", "a private key in PEM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &watched{TB: t}
			defer w.end()
			_, err := Connect(t, Database(w)).Exec(context.Background(),
				"insert into requests values (gen_random_uuid(), '2000-01-01', 'f', 'GET', $1, 200, 1, '', '', '', '', '', '')",
				tc.value)
			if err != nil {
				t.Fatal(err)
			}
			w.end()
			blamed(t, w, tc.kind, "the table requests_default holds a secret", tc.value)
		})
	}
}

// TestASecretIsFoundInBytes: what should be sealed, and is not.
func TestASecretIsFoundInBytes(t *testing.T) {
	t.Parallel()
	secret := Canary("bytes-" + uuid.NewString())
	w := &watched{TB: t}
	defer w.end()
	conn := Connect(t, Database(w))
	_, err := conn.Exec(context.Background(), `
insert into deployments (id, project_id, instance_id, image, token_sha256, bundle, expires_at)
values (gen_random_uuid(), 'p', gen_random_uuid(), 'x', '\x00', $1, now())`, []byte("\x00\xff"+secret))
	if err != nil {
		t.Fatal(err)
	}
	w.end()
	blamed(t, w, "a test's secret", "the table deployments holds a secret", secret)
}

// blamed checks that a test was blamed once for a secret of a kind, and that the blame does not show it; kind "" is no
// blame.
func blamed(t *testing.T, w *watched, kind, want, secret string) {
	t.Helper()
	switch {
	case kind == "" && len(w.blamed) == 0:
	case len(w.blamed) != 1 || kind == "" || !strings.Contains(w.blamed[0], want+": "+kind+" shows") ||
		strings.Contains(w.blamed[0], secret):
		t.Errorf("it is blamed for %q, want %s of %s", w.blamed, want, kind)
	}
}

// nothing is a function without a route.
var nothing = run.HTTP[struct{}, struct{}]{
	Name:   "nothing",
	Build:  func(struct{}, run.Deps) (none struct{}, err error) { return none, nil },
	Routes: func(struct{}) []httpx.Route { return nil },
}

// TestASecretIsFoundInLogs of a process of its own, of one that has ended, and of one within the test's. Each names its
// revision in every line.
func TestASecretIsFoundInLogs(t *testing.T) {
	secret := Canary("logged-" + uuid.NewString())
	env := Env(t, Database(t), map[string]string{"K_REVISION": secret, "FUNCTION_TARGET": "stats"})
	for name, begin := range map[string]func(w *watched){
		"spawned": func(w *watched) { Spawn(w, env) },
		"run": func(w *watched) {
			Run(w, map[string]string{"OS_CLOUD": secret, "DATABASE_URL": "postgres://x@127.0.0.1:1/x"})
		},
		"started": func(w *watched) {
			Start(w, map[string]string{
				"K_REVISION": secret, "DATABASE_URL": env["DATABASE_URL"], "OS_AUTH_URL": "http://127.0.0.1:1",
			}, nothing).Get(t, "/v1/nothing")
		},
	} {
		w := &watched{TB: t}
		begin(w)
		w.end()
		if len(w.blamed) == 0 || !strings.Contains(w.blamed[0], "holds a secret: a test's secret") ||
			strings.Contains(w.blamed[0], secret) {
			t.Errorf("%s: it is blamed for %q", name, w.blamed)
		}
	}
}
