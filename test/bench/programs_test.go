//go:build bench

package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net"
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

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	starts     = 20
	idle       = 5 * time.Second
	startLimit = 50.0 // ms
	idleLimit  = 40.0 // MB
)

//go:embed testdata/hello.go.txt
var helloSource []byte

// program is a binary with its environment, started again and again.
type program struct {
	path string
	env  map[string]string
	took []float64
}

// TestStart measures from exec to the first answer: of a function as Knative starts it, of the daemon, and of
// the smallest Go server there is.
func TestStart(t *testing.T) {
	waitForKeystone(t)
	binary, hello := testkit.Binary(t), buildHello(t)
	env := testkit.Env(t, testkit.Database(t), nil)
	function := testkit.Env(t, env["DATABASE_URL"], map[string]string{"FUNCTION_TARGET": "servers"})
	healthz, status := &program{path: binary, env: function}, &program{path: binary, env: function}
	daemon, bare := &program{path: binary, env: env}, &program{path: hello}
	alternate(starts,
		func() { healthz.start(t, "/healthz") }, func() { status.start(t, "/v1/status") },
		func() { daemon.start(t, "/healthz") }, func() { bare.start(t, "/") })
	line := func(name string, p *program) {
		compare("7a", name+" : limit", median(p.took), startLimit, showMS, atMost(1))
	}
	line("exec to first answer, function, GET /healthz", healthz)
	line("exec to first answer, function, GET /v1/status (Postgres, Keystone)", status)
	line("exec to first answer, daemon, GET /healthz", daemon)
	compare("7b", "exec to first answer, function : bare net/http", median(healthz.took), median(bare.took), showMS,
		shown)
}

// TestIdle measures what a daemon holds after one request of each kind and some seconds of rest.
func TestIdle(t *testing.T) {
	waitForKeystone(t)
	project := testkit.NewProject(t)
	hello := &program{path: buildHello(t)}
	bare := hello.serve(t, "/")
	p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), nil))
	client := newClient()
	token := project.Token(t)
	askEverything(t, client, p.URL, token)
	f := testkit.Sandbox(t)
	order := fmt.Sprintf(`{"name": "bench", "flavor": %q, "image": %q, "networks": [%q]}`, f.FlavorID, f.ImageID,
		f.NetworkID)
	if a := p.As(token).Post(t, "/v1/launch?dry_run=true", order); a.Status != http.StatusOK {
		t.Logf("a dry run answered %d: %s", a.Status, a.Body)
	}
	client.CloseIdleConnections()
	time.Sleep(idle)
	rss := memory(p.PID(), "VmRSS")
	compare("7c", "memory of an idle daemon (RSS) : limit", rss, idleLimit, showMB, atMost(1))
	private := memory(p.PID(), "RssAnon")
	compare("7c", "its private part, without the pages of the binary : memory of an idle daemon (RSS)", private, rss,
		showMB, shown)
	least := memory(bare.Process.Pid, "VmRSS")
	compare("7c", "memory of an idle daemon (RSS) : bare net/http", rss, least, showMB, shown)
}

// askEverything makes one request for each GET of the API; an id in a path is one that does not exist.
func askEverything(t *testing.T, client *http.Client, base, token string) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile(filepath.Join(testkit.Root(), "functions", "openapi.yaml"))
	must(t, err)
	for path, item := range doc.Paths.Map() {
		if item.Get == nil {
			continue
		}
		for strings.Contains(path, "{") {
			from, to := strings.Index(path, "{"), strings.Index(path, "}")
			path = path[:from] + "4f8052c0-49f2-4b75-a508-5c4454e37731" + path[to+1:]
		}
		_, _, err := fetch(client, base+path, http.Header{"X-Auth-Token": {token}})
		if err != nil && !strings.Contains(err.Error(), "404") {
			t.Logf("GET %s: %v", path, err)
		}
	}
}

func buildHello(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, path := filepath.Join(dir, "main.go"), filepath.Join(dir, "hello")
	must(t, os.WriteFile(source, helloSource, 0o600))
	if out, err := exec.Command("go", "build", "-trimpath", "-o", path, source).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// start runs the program until it has answered once.
func (p *program) start(t *testing.T, path string) {
	t.Helper()
	cmd := p.serve(t, path)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// serve runs the program and notes how long its first answer took.
func (p *program) serve(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	port := testkit.FreePort(t)
	cmd := exec.Command(p.path)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PORT=" + port}
	for k, v := range p.env {
		if v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	began := time.Now()
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	waitForPort(t, port)
	resp, err := http.Get("http://127.0.0.1:" + port + path)
	must(t, err)
	_ = resp.Body.Close()
	p.took = append(p.took, ms(time.Since(began)))
	if resp.StatusCode != http.StatusOK {
		t.Errorf("GET %s: %s", path, resp.Status)
	}
	return cmd
}

// waitForPort tries to connect more often than the resolution of the measurement.
func waitForPort(t *testing.T, port string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Microsecond) {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(fmt.Errorf("the program does not serve: %w", err))
		}
	}
}

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
		c.whole, c.waits, c.cpu = nil, nil, nil
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
		compare(number, fmt.Sprintf("cloudfn servers list of %d servers, %s : %s", cliServers, what, peer), we, they,
			showMS, goal)
	}
	line("all the time, median", median(ours.whole), median(theirs.whole), whole)
	line("all the time, worst", percentile(ours.whole, 100), percentile(theirs.whole, 100), shown)
	line("the client's own, median", median(ours.own()), median(theirs.own()), own)
	line("the client's own, worst", percentile(ours.own(), 100), percentile(theirs.own(), 100), shown)
	line("the client's processor time, median", median(ours.cpu), median(theirs.cpu), shown)
	line("waiting for servers, median", median(ours.waits), median(theirs.waits), shown)
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

	whole, waits, cpu []float64 // of each run, in ms: all of it, waiting for servers, its processor time
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
		own[i] = c.whole[i] - c.waits[i]
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
		c.whole, c.waits = append(c.whole, whole), append(c.waits, c.watch.busy())
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

// busy is for how long at least one request was under way: concurrent requests count once.
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
