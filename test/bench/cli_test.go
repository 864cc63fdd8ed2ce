//go:build bench

package bench

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	cliServers = 20
	cliRounds  = 9
)

// TestCLI holds `cloudfn servers list` against `openstack server list`: the same 20 servers, each by its own way to
// them. Both have run before, and do as they do without any option: cloudfn keeps its token, and openstack logs in each
// time. What is between a client and its servers is a stopwatch, so that a client's own time is what is left of the
// whole.
func TestCLI(t *testing.T) {
	waitForSandbox(t)
	project := testkit.NewProject(t)
	t.Logf("%d servers were ACTIVE after %.0f s", cliServers, timed(func() { boot(t, project, cliServers) })/1000)
	daemon := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), nil))
	login, token := project.Environment(), project.Token(t)

	ours := newCommand(t, login, buildCLI(t), "servers", "list")
	ours.env["CLOUDFN_URL"] = ours.watch.before(t, daemon.URL)
	ours.env["OS_AUTH_URL"] = ours.watch.before(t, login["OS_AUTH_URL"])
	theirs := newCommand(t, login, "openstack", "server", "list")
	theirs.through(t, login["OS_AUTH_URL"], token)
	bare := newCommand(t, login, "openstack", "server", "list", "--no-name-lookup")
	bare.through(t, login["OS_AUTH_URL"], token)
	all := []*command{ours, theirs, bare}
	for _, c := range all {
		c.run(t)
		c.run(t)
		c.whole, c.away, c.cpu = nil, nil, nil
	}
	alternate(cliRounds, func() { ours.run(t) }, func() { theirs.run(t) }, func() { bare.run(t) })
	for _, c := range all {
		t.Logf("%s: %d requests in %s", strings.Join(c.args, " "), len(c.watch.requests),
			strings.Join(c.watch.requests, ", "))
	}
	compareCLI("10a", "openstack server list", ours, theirs, atMost(1.0/5), atMost(1.0/50))
	compareCLI("10b", "with --no-name-lookup", ours, bare, shown, shown)
}

// compareCLI adds the lines for one peer. whole and own are the targets of all the time and of the client's own.
func compareCLI(number, peer string, ours, theirs *command, whole, own target) {
	line := func(what string, we, they float64, goal target) {
		report(result{
			number: number, name: fmt.Sprintf("cloudfn servers list of %d servers, %s : %s", cliServers, what, peer),
			ours: showMS(we), peer: showMS(they), ratio: we / they, target: goal,
		})
	}
	line("all the time, median", median(ours.whole), median(theirs.whole), whole)
	line("all the time, worst", percentile(ours.whole, 100), percentile(theirs.whole, 100), shown)
	line("the client's own, median", median(ours.own()), median(theirs.own()), own)
	line("the client's own, worst", percentile(ours.own(), 100), percentile(theirs.own(), 100), shown)
	line("the client's processor time, median", median(ours.cpu), median(theirs.cpu), shown)
	line("waiting for servers, median", median(ours.away), median(theirs.away), shown)
}

// buildCLI builds cloudfn as `make build` does.
func buildCLI(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cloudfn")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/cloudfn")
	cmd.Dir = testkit.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// command is a client that is run again and again.
type command struct {
	path  string
	args  []string
	env   map[string]string
	watch *stopwatch

	whole, away, cpu []float64 // of each run, in ms: all of it, waiting for servers, its processor time
}

func newCommand(t *testing.T, login map[string]string, args ...string) *command {
	t.Helper()
	path, err := exec.LookPath(args[0])
	must(t, err)
	c := &command{
		path: path, args: append([]string{filepath.Base(path)}, args[1:]...), env: map[string]string{
			"OS_IDENTITY_API_VERSION": "3",
		}, watch: &stopwatch{},
	}
	maps.Copy(c.env, login)
	c.env["HOME"], c.env["PATH"], c.env["LANG"] = t.TempDir(), os.Getenv("PATH"), "C.UTF-8"
	return c
}

// through has the client meet a stopwatch before Keystone, and before each service of the catalog.
func (c *command) through(t *testing.T, keystone, token string) {
	t.Helper()
	body, _, err := fetch(newClient(), strings.TrimSuffix(keystone, "/")+"/auth/catalog", http.Header{
		"X-Auth-Token": {token},
	})
	must(t, err)
	var document struct {
		Catalog []struct {
			Type      string
			Endpoints []struct{ Interface, URL string }
		}
	}
	must(t, json.Unmarshal(body, &document))
	to := map[string]string{}
	for _, service := range document.Catalog {
		for _, e := range service.Endpoints {
			if e.Interface == "public" {
				to[service.Type] = c.watch.before(t, e.URL)
			}
		}
	}
	c.env["OS_AUTH_URL"] = c.watch.before(t, testkit.RedirectTo(t, to).URL())
}

// own is what each run took besides waiting for servers.
func (c *command) own() []float64 {
	own := make([]float64, len(c.whole))
	for i := range c.whole {
		own[i] = c.whole[i] - c.away[i]
	}
	return own
}

// run runs it once. It must list the servers.
func (c *command) run(t *testing.T) {
	t.Helper()
	again(t, func() error {
		cmd := exec.Command(c.path, c.args[1:]...)
		for k, v := range c.env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		c.watch.reset()
		var out []byte
		var err error
		whole := timed(func() { out, err = cmd.CombinedOutput() })
		if n := strings.Count(string(out), "ACTIVE"); err != nil || n != cliServers {
			return fmt.Errorf("%s listed %d servers: %w\n%s", strings.Join(c.args, " "), n, err, out)
		}
		c.whole, c.away = append(c.whole, whole), append(c.away, c.watch.busy())
		c.cpu = append(c.cpu, ms(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()))
		return nil
	})
}

// stopwatch stands before servers and notes how long each request to them is under way, until its answer has been
// passed on.
type stopwatch struct {
	sync.Mutex
	requests []string
	spans    []span
}

type span struct{ from, to time.Time }

func (s *stopwatch) reset() {
	s.Lock()
	defer s.Unlock()
	s.requests, s.spans = nil, nil
}

// busy is for how long at least one request was under way: requests at once count once.
func (s *stopwatch) busy() (total float64) {
	s.Lock()
	defer s.Unlock()
	slices.SortFunc(s.spans, func(a, b span) int { return a.from.Compare(b.from) })
	var until time.Time
	for _, one := range s.spans {
		if one.from.Before(until) {
			one.from = until
		}
		if one.to.After(one.from) {
			total += ms(one.to.Sub(one.from))
			until = one.to
		}
	}
	return total
}

// before starts a stopwatch before a service, and gives the address that clients are to call instead. What a service
// says of its own address is as the client has called it.
func (s *stopwatch) before(t *testing.T, service string) string {
	t.Helper()
	to, err := url.Parse(service)
	must(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host },
		Transport: &http.Transport{MaxIdleConnsPerHost: 8},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		proxy.ServeHTTP(w, r)
		s.Lock()
		defer s.Unlock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		s.spans = append(s.spans, span{began, time.Now()})
	}))
	t.Cleanup(server.Close)
	return server.URL + strings.TrimSuffix(to.Path, "/")
}
