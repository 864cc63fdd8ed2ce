//go:build bench

package bench

import (
	_ "embed"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
		report(result{
			number: "7a", name: name + " : limit", ours: showMS(median(p.took)), peer: showMS(startLimit),
			ratio: median(p.took) / startLimit, target: atMost(1),
		})
	}
	line("exec to first answer, function, GET /healthz", healthz)
	line("exec to first answer, function, GET /v1/status (Postgres, Keystone)", status)
	line("exec to first answer, daemon, GET /healthz", daemon)
	report(result{
		number: "7b", name: "exec to first answer, function : bare net/http", ours: showMS(median(healthz.took)),
		peer: showMS(median(bare.took)), ratio: median(healthz.took) / median(bare.took),
	})
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
	report(result{
		number: "7c", name: "memory of an idle daemon (RSS) : limit", ours: showMB(rss), peer: showMB(idleLimit),
		ratio: rss / idleLimit, target: atMost(1),
	})
	private := memory(p.PID(), "RssAnon")
	report(result{
		number: "7c", name: "its private part, without the pages of the binary : memory of an idle daemon (RSS)",
		ours: showMB(private), peer: showMB(rss), ratio: private / rss,
	})
	least := memory(bare.Process.Pid, "VmRSS")
	report(result{
		number: "7c", name: "memory of an idle daemon (RSS) : bare net/http", ours: showMB(rss), peer: showMB(least),
		ratio: rss / least,
	})
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
