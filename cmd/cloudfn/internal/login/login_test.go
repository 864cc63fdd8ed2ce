package login

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

func held(t *testing.T, c cache, name string) string {
	t.Helper()
	found, ok := c.read(name)
	if ok != (found.Token != "") {
		t.Errorf("there is one: %v, and it is %q", ok, found.Token.Reveal())
	}
	return found.Token.Reveal()
}

// TestCacheKeeps a token for its own login, where no one else can read it, until shortly before its end.
func TestCacheKeeps(t *testing.T) {
	t.Parallel()
	c := cache{dir: filepath.Join(t.TempDir(), "new", "cloudfn")}
	if err := c.remove("ann"); err != nil {
		t.Errorf("one that is not there: %v", err)
	}
	if err := c.write("ann", stored{Token: "canary", ExpiresAt: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if got := held(t, c, "ann"); got != "canary" {
		t.Errorf("got %q", got)
	}
	if got := held(t, c, "ben"); got != "" {
		t.Errorf("another login gets %q", got)
	}
	for path, want := range map[string]os.FileMode{c.dir: 0o700, c.path("ann"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%v %v, want %v", info.Mode(), err, want)
		}
	}
	if name := c.path("ann"); strings.Contains(filepath.Base(name), "ann") {
		t.Errorf("the file's name %s says who it is", name)
	}
	if err := c.remove("ann"); err != nil || held(t, c, "ann") != "" {
		t.Errorf("it stays: %v", err)
	}
}

// TestCacheIsNotBelieved when others could have read or written it, when it is damaged, and when its token is about
// to end.
func TestCacheIsNotBelieved(t *testing.T) {
	t.Parallel()
	good := stored{Token: "canary", ExpiresAt: time.Now().Add(time.Hour)}
	for name, damage := range map[string]func(c cache) error{
		"others can read it":  func(c cache) error { return os.Chmod(c.path("ann"), 0o644) },
		"others can write it": func(c cache) error { return os.Chmod(c.path("ann"), 0o620) },
		"it is cut off":       func(c cache) error { return os.Truncate(c.path("ann"), 10) },
		"it is empty":         func(c cache) error { return os.Truncate(c.path("ann"), 0) },
		"no token":            func(c cache) error { return c.write("ann", stored{ExpiresAt: good.ExpiresAt}) },
		"over":                func(c cache) error { return c.write("ann", stored{Token: "x", ExpiresAt: time.Now()}) },
		"nearly over": func(c cache) error {
			return c.write("ann", stored{Token: "x", ExpiresAt: time.Now().Add(margin - time.Second)})
		},
	} {
		c := cache{dir: t.TempDir()}
		if err := c.write("ann", good); err != nil {
			t.Fatal(err)
		}
		if err := damage(c); err != nil {
			t.Fatal(err)
		}
		if got := held(t, c, "ann"); got != "" {
			t.Errorf("%s: it gives %q", name, got)
		}
		if err := c.write("ann", good); err != nil || held(t, c, "ann") != "canary" {
			t.Errorf("%s: it cannot be replaced: %v", name, err)
		}
	}
}

// TestCacheOfManyCommands that run concurrently: each finds one that is whole, and no temporary file stays.
func TestCacheOfManyCommands(t *testing.T) {
	t.Parallel()
	c := cache{dir: t.TempDir()}
	long := strings.Repeat("t", 1<<16)
	var group sync.WaitGroup
	for n := range 8 {
		group.Go(func() {
			for range 50 {
				if err := c.write("ann", stored{
					Token:     domain.Secret(long + strconv.Itoa(n)),
					ExpiresAt: time.Now().Add(time.Hour),
				}); err != nil {
					t.Error(err)
				}
				if found, ok := c.read("ann"); !ok || len(found.Token) != len(long)+1 {
					t.Errorf("there is one: %v, of %d bytes", ok, len(found.Token))
				}
			}
		})
	}
	group.Wait()
	if files, err := os.ReadDir(c.dir); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

func TestWhereTheCacheIs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  map[string]string
		want string
	}{
		"our own":     {map[string]string{"CLOUDFN_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"},
		"the desktop": {map[string]string{"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/cloudfn"},
		"not a path":  {map[string]string{"XDG_CACHE_HOME": "b", "HOME": "/c"}, "/c/.cache/cloudfn"},
		"nowhere":     {map[string]string{"HOME": ""}, ""},
	} {
		got, err := cacheDir(func(name string) (string, bool) { value, ok := tc.env[name]; return value, ok })
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}

// TestATokenThatCannotBeKept is good for the command that got it: there is one request to Keystone.
func TestATokenThatCannotBeKept(t *testing.T) {
	t.Parallel()
	calls := 0
	keystone := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.Header().Set("X-Subject-Token", "canary")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w,
			`{"token": {"expires_at": %q, "issued_at": "2026-01-02T03:04:05.000000Z", "methods": ["password"],
			"user": {"id": "u", "name": "ann", "domain": {"id": "default", "name": "Default"}},
			"project": {"id": "p", "name": "p", "domain": {"id": "default", "name": "Default"}},
			"roles": [], "catalog": []}}`, time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z"))
	}))
	t.Cleanup(keystone.Close)
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no folder can be made there
		t.Fatal(err)
	}
	env := map[string]string{
		"OS_AUTH_URL": keystone.URL + "/v3", "OS_USERNAME": "ann", "OS_PASSWORD": "x",
		"OS_PROJECT_NAME": "p", "CLOUDFN_CACHE_DIR": dir,
	}
	login, err := New(t.Context(), Options{Env: func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}})
	if err != nil {
		t.Fatal(err)
	}
	for n, renew := range []bool{false, false, true, false} {
		if token, err := login.Token(t.Context(), renew); err != nil || token != "canary" {
			t.Fatalf("%d: %v", n, err)
		}
	}
	if calls != 2 {
		t.Errorf("Keystone was called %d times, want one for the token and one for another when that was refused",
			calls)
	}
}
