package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// interrupt starts a command, presses Ctrl-C when its stderr matches, and wants the exit code 130.
func interrupt(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 2, "interrupt PATTERN COMMAND...")
	path, err := exec.LookPath(args[1])
	ts.Check(err)
	var stdout, stderr shared
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), &stdout, &stderr
	for _, name := range []string{
		"HOME", "CLOUDFN_URL", "OS_AUTH_URL", "OS_USERNAME", "OS_PASSWORD", "OS_PROJECT_NAME", "OS_USER_DOMAIN_ID",
		"OS_PROJECT_DOMAIN_ID",
	} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	ts.Check(cmd.Start())
	pattern := regexp.MustCompile("(?m)" + args[0])
	end := time.Now().Add(2 * time.Minute)
	for ; !pattern.MatchString(stderr.String()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			_ = cmd.Process.Kill()
			ts.Fatalf("no %s in:\n%s", args[0], stderr.String())
		}
	}
	ts.Check(cmd.Process.Signal(os.Interrupt))
	if open, ok := gates.Load(ts); ok {
		open.(func())()
	}
	_ = cmd.Wait()
	_, _ = ts.Stdout().Write([]byte(stdout.String()))
	_, _ = ts.Stderr().Write([]byte(stderr.String()))
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		ts.Fatalf("the exit code is %d\n%s", code, stderr.String())
	}
}

// shared is what a process writes and a test reads at the same time.
type shared struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// breaks stands before the daemon: it takes launches there, and breaks off the connection instead of the first N
// answers.
func (d daemon) breaks(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 2, "breaks NAME N")
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	proxy := d.proxy(ts, nil)
	var left atomic.Int64
	left.Store(n)
	stand(ts, args[0], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && left.Add(-1) >= 0 {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
}

// proxy leads to the daemon, and may modify its answers.
func (d daemon) proxy(ts *testscript.TestScript, modify func(*http.Response) error) *httputil.ReverseProxy {
	to, err := url.Parse(d.URL)
	ts.Check(err)
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, ModifyResponse: modify,
	}
}

// stand starts a server until the script ends; its URL is a variable of the script.
func stand(ts *testscript.TestScript, name string, handler http.Handler) {
	server := httptest.NewServer(handler)
	ts.Defer(server.Close)
	ts.Setenv(name, server.URL)
}

// holds stands before the daemon, and holds the answers to a method until the script's next interrupt, or until the
// client has disconnected.
func (d daemon) holds(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 2, "holds NAME METHOD")
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	gates.Store(ts, open)
	stand(ts, args[0], d.proxy(ts, func(resp *http.Response) error {
		if resp.Request.Method == args[1] {
			select {
			case <-gate:
			case <-resp.Request.Context().Done():
			}
		}
		return nil
	}))
	ts.Defer(func() { open(); gates.Delete(ts) }) // before the server is closed
}

var gates sync.Map // of func() by script

// weakens stands before the daemon and does to its answers what nginx does with `gzip on`: it compresses JSON for
// clients that accept that, unless it is compressed already, and makes ETags weak.
func (d daemon) weakens(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "weakens NAME")
	stand(ts, args[0], d.proxy(ts, func(resp *http.Response) error {
		if tag := resp.Header.Get("ETag"); strings.HasPrefix(tag, `"`) {
			resp.Header.Set("ETag", "W/"+tag)
		}
		if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("Content-Encoding") != "" ||
			!strings.Contains(resp.Request.Header.Get("Accept-Encoding"), "gzip") {
			return nil
		}
		var compressed bytes.Buffer
		w := gzip.NewWriter(&compressed)
		_, err := io.Copy(w, resp.Body)
		if err := errors.Join(err, w.Close(), resp.Body.Close()); err != nil {
			return err
		}
		resp.Body, resp.ContentLength = io.NopCloser(&compressed), int64(compressed.Len())
		resp.Header.Set("Content-Encoding", "gzip")
		resp.Header.Set("Content-Length", strconv.Itoa(compressed.Len()))
		return nil
	}))
}

func (d daemon) statHours(ts *testscript.TestScript, neg bool, args []string) {
	for len(args) < 4 {
		args = append(args, "0")
	}
	needs(ts, neg, args, 4, "stat-hours N RUNNING [UNCERTAIN [LAUNCHED]]")
	still := d.midHour() // the hour must not change between here and what the script requests
	ts.Setenv("CLOUDFN_URL", still.URL)
	p, conn := project(ts), testkit.Connect(tb(ts), still.database)
	hours, err := strconv.Atoi(args[0])
	ts.Check(err)
	running, err := strconv.Atoi(args[1])
	ts.Check(err)
	_, err = conn.Exec(context.Background(), `
with h as (select date_trunc('hour', now(), 'UTC') - n * interval '1 hour' as hour from generate_series(0, $3 - 1) n),
project as (insert into stats_projects select $1, $2, min(hour),
max(hour) from h on conflict (project_id) do update set first_hour = excluded.first_hour)
insert into stats_hourly (project_id, domain_id, hour, running, total, by_status, source, uncertain, launched)
select $1, $2, hour, $4, $4, jsonb_build_object('ACTIVE', $4::int), 'sampled', $5::int, $6::int from h
on conflict (project_id, hour) do update set running = excluded.running, total = excluded.total,
by_status = excluded.by_status, uncertain = excluded.uncertain, launched = excluded.launched`,
		p.ID, p.DomainID, hours, running, args[2], args[3])
	ts.Check(err)
}

// counted stands before Keystone for this script from now on, and counts: called N says how many calls there were
// since.
func counted(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 0, "counted")
	at, calls := testkit.Intercept(tb(ts), strings.TrimSuffix(ts.Getenv("OS_AUTH_URL"), "/"), func(*http.Request) {})
	ts.Setenv("OS_AUTH_URL", at)
	counts.Store(ts, calls)
	ts.Defer(func() { counts.Delete(ts) })
}

var counts sync.Map // of *atomic.Int64 by script

func called(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "called N")
	want, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	calls, _ := counts.Load(ts)
	if n := calls.(*atomic.Int64).Swap(0); n != want {
		ts.Fatalf("Keystone was called %d times, not %d", n, want)
	}
}

// credential makes an application credential of the member: $CREDENTIAL_ID, $CREDENTIAL_NAME and $CREDENTIAL_SECRET.
func credential(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 0, "credential")
	t, p := tb(ts), project(ts)
	id, secret := p.AppCredential(t)
	ts.Setenv("CREDENTIAL_ID", id)
	ts.Setenv("CREDENTIAL_NAME", p.AppCredentialName(t, id))
	ts.Setenv("CREDENTIAL_SECRET", secret)
}

// expand puts the values of environment variables into files.
func expand(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "expand FILE...")
	for _, file := range args {
		ts.Check(os.WriteFile(ts.MkAbs(file), []byte(os.Expand(ts.ReadFile(file), ts.Getenv)), 0o600))
	}
}

// kept rewrites the token that is kept: `revoked` ends it in Keystone, `expired` says that it has expired, `ended`
// puts one there that has expired although the file says otherwise, `readable` lets everybody read a file with
// nonsense.
func kept(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "kept revoked|expired|ended|readable")
	files, err := filepath.Glob(filepath.Join(ts.Getenv("HOME"), ".cache", "cloudfn", "token-*.json"))
	ts.Check(err)
	if len(files) != 1 {
		ts.Fatalf("there are %d tokens", len(files))
	}
	text, err := os.ReadFile(files[0])
	ts.Check(err)
	var token struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	ts.Check(json.Unmarshal(text, &token))
	mode := os.FileMode(0o600)
	switch args[0] {
	case "revoked":
		project(ts).Revoke(tb(ts), token.Token)
		return
	case "expired":
		token.ExpiresAt = time.Now().Add(-time.Minute)
	case "ended":
		token.Token = project(ts).ExpiredToken(tb(ts))
	case "readable":
		token.Token, mode = "nonsense", 0o644
	}
	text, err = json.Marshal(token)
	ts.Check(err)
	ts.Check(os.WriteFile(files[0], text, mode))
	ts.Check(os.Chmod(files[0], mode))
}

// examples writes the commands of README.md to a file, with the names that things have in this sandbox.
func examples(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "examples FILE")
	text, err := os.ReadFile(filepath.Join(testkit.Root(), "cmd", "cloudfn", "README.md"))
	ts.Check(err)
	here := strings.NewReplacer("m1.tiny", ts.Getenv("FLAVOR"), "cirros", ts.Getenv("IMAGE"), "--network private",
		"--network '"+ts.Getenv("NETWORK")+"'")
	lines := []string{"set -euxo pipefail"}
	for line := range strings.Lines(string(text)) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			lines = append(lines, here.Replace(strings.TrimSpace(command)))
		}
	}
	if len(lines) < 5 {
		ts.Fatalf("README.md has %d examples", len(lines)-1)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Join(lines, "\n")), 0o600))
}

// admin makes the project's member an admin of the cloud.
func admin(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 0, "admin")
	p := project(ts)
	p.Grant(tb(ts), p.UserID, "admin")
}

// countNothing takes the counts of the next hours for someone who never makes them. What the scripts see of the
// statistics is what stat-hours wrote, whatever hour begins meanwhile.
func countNothing(t *testing.T, database string) {
	t.Helper()
	_, err := testkit.Connect(t, database).Exec(t.Context(), `
insert into jobs (kind, key, claim_id, claimed_until)
select 'collect-stats', key, gen_random_uuid(), now() + interval '1 day' from (
    select to_char(date_trunc('hour', now(), 'UTC') at time zone 'UTC' + n * interval '1 hour',
        'YYYY-MM-DD"T"HH24:00:00"Z"') from generate_series(0, 12) n
    union select 'recheck') keys (key)`)
	if err != nil {
		t.Fatal(err)
	}
}

func userData(ts *testscript.TestScript, neg bool, args []string) {
	needs(ts, neg, args, 1, "user-data FILE")
	want := ts.ReadFile(args[0])
	for _, s := range project(ts).Servers(tb(ts)) {
		if got := testkit.UserData(tb(ts), s.ID); got != want {
			ts.Fatalf("the user_data of %s is %q, want %q", s.Name, got, want)
		}
	}
}
