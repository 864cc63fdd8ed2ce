package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// shell completes lease ids, as processes with one cache do.
type shell struct {
	env     map[string]string
	now     time.Time
	url     string
	started int // processes that refresh
}

// newShell is a shell for an API.
func newShell(t *testing.T, serve http.HandlerFunc) *shell {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	return &shell{now: time.Now(), url: server.URL, env: map[string]string{
		"CLOUDFN_CACHE_DIR": filepath.Join(t.TempDir(), "cache"), "OS_AUTH_URL": "http://127.0.0.1:1/v3",
		"OS_USERNAME": "ann", "OS_PASSWORD": "canary-password", "OS_PROJECT_NAME": "p",
	}}
}

// tab is what the shell gets in one process.
func (s *shell) tab(t *testing.T, change func(*App)) []string {
	t.Helper()
	a := &App{
		URL: s.url, Err: &bytes.Buffer{}, Now: func() time.Time { return s.now },
		Env:          func(name string) (string, bool) { value, ok := s.env[name]; return value, ok },
		startRefresh: func() { s.started++ }, findTime: time.Hour,
	}
	if change != nil {
		change(a)
	}
	a.Client = api.New(api.Options{URL: a.URL, Token: func(context.Context, bool) (domain.Secret, error) {
		return "canary-token", nil
	}})
	leases := Noun[api.Lease]{Path: "/v1/leases", Key: "leases", Offer: func(l api.Lease) string {
		return l.ID + "\t" + l.Name
	}}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	found, _ := a.Complete(0, leases.Finder(a, nil, 0))(cmd, nil, "")
	return found
}

func refreshing(a *App) { a.isRefreshing = true }

// TestCompletionFromCache: names come from the file without a call, and a process refreshes it behind, one at a time.
func TestCompletionFromCache(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := newShell(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"leases": [{"id": "l%d", "name": "one"}, {"id": "x\u001b[2J", "name": "bad"}], "next": null}`, calls.Add(1))
	})
	first := []string{"l1\tone"}
	for n, step := range []struct {
		later          time.Duration
		change         func(*App)
		want           []string
		calls, started int
	}{
		{0, nil, first, 1, 0},
		{time.Second, nil, first, 1, 0},
		{3 * time.Second, nil, first, 1, 1},
		{time.Second, nil, first, 1, 1}, // the process may still run
		{3 * time.Second, nil, first, 1, 2},
		{0, refreshing, []string{"l2\tone"}, 2, 2},
		{0, nil, []string{"l2\tone"}, 2, 2},
		{maxNamesAge, nil, []string{"l3\tone"}, 3, 2}, // too old
		{-time.Hour, nil, []string{"l4\tone"}, 4, 2},  // the clock was wrong
	} {
		s.now = s.now.Add(step.later)
		got := s.tab(t, step.change)
		if !slices.Equal(got, step.want) || int(calls.Load()) != step.calls || s.started != step.started {
			t.Errorf("%d: got %q after %d calls and %d processes, want %+v", n, got, calls.Load(), s.started, step)
		}
	}
}

// TestSlowCompletion: without a file a completion waits for its time only, and the process that it starts gets the
// names for the next one, which waits for nothing.
func TestSlowCompletion(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	s := newShell(t, func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			<-r.Context().Done() // the client has waited for its time
		}
		fmt.Fprint(w, `{"leases": [{"id": "l1", "name": "one"}], "next": null}`)
	})
	hangs.Store(true)
	short := func(a *App) { a.findTime = time.Millisecond }
	for range 2 { // the second one while the process runs
		got := s.tab(t, short)
		if len(got) != 1 || !strings.Contains(got[0], "did not answer within 1ms") || s.started != 1 {
			t.Fatalf("got %q, and %d processes", got, s.started)
		}
	}
	hangs.Store(false)
	s.tab(t, refreshing)
	hangs.Store(true)
	if got := s.tab(t, nil); !slices.Equal(got, []string{"l1\tone"}) {
		t.Errorf("got %q", got)
	}
}

// TestCacheIsOfOneLogin: no other login, project, URL or kind gets its names, nor does anyone read them in a file that
// others could write. The files have no secret, and logging out deletes them.
func TestCacheIsOfOneLogin(t *testing.T) {
	t.Parallel()
	var calls int
	s := newShell(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		fmt.Fprint(w, `{"leases": [{"id": "l1", "name": "one"}], "next": null}`)
	})
	called := func(change func(*App)) bool {
		t.Helper()
		before := calls
		s.tab(t, change)
		return calls > before
	}
	with := func(name, value string) func(*App) {
		return func(a *App) {
			a.Env = func(other string) (string, bool) {
				if other == name {
					return value, true
				}
				found, ok := s.env[other]
				return found, ok
			}
		}
	}
	if !called(nil) || called(nil) {
		t.Fatal("the names are not kept")
	}
	for what, change := range map[string]func(*App){
		"another user": with("OS_USERNAME", "ben"), "another project": with("OS_PROJECT_NAME", "q"),
		"another cloud": with("OS_AUTH_URL", "http://127.0.0.1:2/v3"),
		"another URL":   func(a *App) { a.URL += "/" },
	} {
		if !called(change) {
			t.Errorf("%s gets its names", what)
		}
	}
	s.env["OS_AUTH_TYPE"], s.env["OS_TOKEN"] = "token", "canary-1"
	if !called(nil) || called(nil) || !called(with("OS_TOKEN", "canary-2")) {
		t.Error("another token gets its names")
	}
	delete(s.env, "OS_AUTH_TYPE")
	delete(s.env, "OS_TOKEN")
	dir := s.env["CLOUDFN_CACHE_DIR"]
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if info.Mode().Perm() != 0o700 {
				t.Errorf("%s: %s", path, info.Mode())
			}
			return nil
		}
		text, err := os.ReadFile(path)
		if strings.Contains(path+string(text), "canary") || info.Mode().Perm() != 0o600 {
			t.Errorf("%s, %s: %s", path, info.Mode(), text)
		}
		return errors.Join(err, os.Chmod(path, 0o620))
	})
	if err != nil {
		t.Fatal(err)
	}
	if !called(nil) {
		t.Error("a file that others could write is read")
	}
	logout := func(a *App) {
		user, err := a.User(t.Context())
		if err == nil {
			err = user.Forget()
		}
		if err != nil {
			t.Error(err)
		}
	}
	if !called(logout) {
		t.Error("logging out leaves names")
	}
}
