package agents

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// Where the guest's script and its parameters are.
const (
	runDir         = "/run/cloudfn-agent"
	parametersFile = runDir + "/parameters"
	unitDir        = "/etc/systemd/system"
)

// guestFiles takes user_data apart, as cloud-init does: what it runs, and the files that it writes.
func guestFiles(t *testing.T, userData domain.Secret) (command []string, files map[string]string) {
	t.Helper()
	_, config, _ := strings.Cut(userData.Reveal(), "\n")
	var c struct {
		Files []struct {
			Path    string `json:"path"`
			Content []byte `json:"content"`
		} `json:"write_files"`
		Run [][]string `json:"runcmd"`
	}
	if err := json.Unmarshal([]byte(config), &c); err != nil || len(c.Run) != 1 {
		t.Fatalf("%v in %s", err, config)
	}
	files = map[string]string{}
	for _, f := range c.Files {
		files[f.Path] = string(f.Content)
	}
	return c.Run[0], files
}

// guest is a folder that the script takes for its root. Its podman, systemctl and sleep are fakes that record
// their calls; curl, openssl and all else are real.
type guest struct {
	root    string
	command []string
}

const fakePodman = `#!/bin/sh
n=$(ls "$NOTES" | wc -l)
for a in "$@"; do printf '%s\0' "$a"; done > "$NOTES/podman.$n.$1"
case $1 in
  pull) cp "$REGISTRY_AUTH_FILE" "$ROOT/login" ;;
  create) cp "$7" "$ROOT/env" ;;
  inspect) echo "true 2026-01-02 03:04:05" ;;
esac
`

const fakeSystemctl = `#!/bin/sh
n=$(ls "$NOTES" | wc -l)
for a in "$@"; do printf '%s\0' "$a"; done > "$NOTES/systemctl.$n.$1"
`

func newGuest(t *testing.T, userData domain.Secret) guest {
	t.Helper()
	g := guest{root: t.TempDir()}
	command, files := guestFiles(t, userData)
	for _, dir := range []string{runDir, unitDir, "/bin", "/notes"} {
		if err := os.MkdirAll(g.root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	moved := strings.NewReplacer(runDir, g.root+runDir, unitDir, g.root+unitDir)
	for path, content := range files {
		g.write(t, path, moved.Replace(content))
	}
	g.write(t, "/bin/podman", fakePodman)
	g.write(t, "/bin/systemctl", fakeSystemctl)
	g.write(t, "/bin/sleep", "#!/bin/sh\n")
	for _, part := range command {
		g.command = append(g.command, moved.Replace(part))
	}
	return g
}

func (g guest) write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(g.root+path, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
}

func (g guest) read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(g.root + path)
	if err != nil {
		t.Error(err)
	}
	return string(content)
}

// boot runs what cloud-init would run.
func (g guest) boot(t *testing.T) (log string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), g.command[0], g.command[1:]...)
	cmd.Env = []string{
		"PATH=" + g.root + "/bin:/usr/bin:/bin", "NOTES=" + g.root + "/notes", "ROOT=" + g.root,
		"no_proxy=*",
	}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), secret) {
		t.Errorf("the guest's log shows a secret: %s", out)
	}
	if _, err := os.Stat(g.root + runDir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", runDir, err)
	}
	return string(out), err
}

// calls lists the arguments of each call of a fake, in order.
func (g guest) calls(t *testing.T) (calls [][]string) {
	t.Helper()
	entries, err := os.ReadDir(g.root + "/notes")
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return number(t, a) - number(t, b) })
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		args := strings.Split(strings.TrimSuffix(g.read(t, "/notes/"+e.Name()), "\x00"), "\x00")
		calls = append(calls, append([]string{name}, args...))
	}
	return calls
}

func number(t *testing.T, e os.DirEntry) (n int) {
	t.Helper()
	if _, err := fmt.Sscanf(strings.SplitN(e.Name(), ".", 3)[1], "%d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestGuestScript runs the script of the user_data against the real function, with values that would break out of
// careless quoting.
func TestGuestScript(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	late, calls := readyLate(t, app.URL)
	command := []string{"run", "", "--x=$(touch /tmp/x)", "a\nb\n", `"'\`, "; reboot #", "*", "é ✓", "-n"}
	d := deploy(t, database, conn, late, func(s *agent.Spec) {
		s.Image = "registry.example.com:5000/team/agent:1.2"
		s.Command = command
		s.Env = map[string]string{"A": " $HOME `id` # x ", "B": `"quoted" 'too'`, "EMPTY": "", "C": "x=y"}
		s.Registry = &agent.Registry{Username: "robot", Password: secret + "-password"}
	})
	g := newGuest(t, d.userData)
	log, err := g.boot(t)
	if err != nil {
		t.Fatalf("%v: %s", err, log)
	}
	if n := calls.Load(); n != 4 {
		t.Errorf("it took %d requests: two that no one answered, the bundle, and ready", n)
	}
	var create []string
	var verbs []string
	for _, call := range g.calls(t) {
		verbs = append(verbs, call[0]+" "+call[1])
		if call[1] == "create" {
			create = call
		}
	}
	want := "podman pull,systemctl stop,podman rm,podman create,systemctl daemon-reload,systemctl enable,systemctl " +
		"restart,podman inspect,podman inspect"
	if got := strings.Join(verbs, ","); got != want {
		t.Errorf("the guest did %s, want %s", got, want)
	}
	wantCreate := append([]string{
		"podman", "create", "--name", "cloudfn-agent", "--network", "host", "--env-file", g.root + runDir + "/env",
		"registry.example.com:5000/team/agent:1.2",
	}, command...)
	if !slices.Equal(create, wantCreate) {
		t.Errorf("the container was made by %q, want %q", create, wantCreate)
	}
	wantEnv := "A= $HOME `id` # x \nB=\"quoted\" 'too'\nC=x=y\nEMPTY=\nINSTANCE_ID=" + d.InstanceID.String() +
		"\nJOIN_TOKEN=" + secret + "\n"
	if got := g.read(t, "/env"); got != wantEnv {
		t.Errorf("its environment is %q, want %q", got, wantEnv)
	}
	if got := g.read(t, "/login"); got !=
		`{"auths":{"registry.example.com:5000":{"auth":"cm9ib3Q6Y2FuYXJ5LW9mLWFuLWFnZW50LXBhc3N3b3Jk"}}}` {
		t.Errorf("the login is %s", got)
	}
	unit := g.read(t, unitDir+"/cloudfn-agent.service")
	for _, line := range []string{
		"ExecStart=" + g.root + "/bin/podman start --attach cloudfn-agent\n", "Restart=always\n",
		"WantedBy=multi-user.target\n",
	} {
		if !strings.Contains(unit, line) || strings.Contains(unit, secret) {
			t.Errorf("the unit is %s", unit)
		}
	}
	if !testkit.Scalar[bool](t, conn, "select ready_at is not null from deployments") {
		t.Error("the agent has not reported that it is ready")
	}
	again := newGuest(t, d.userData) // anyone who finds the user_data later
	if log, err := again.boot(t); err == nil || !strings.Contains(log, "status 404") || len(again.calls(t)) != 0 {
		t.Errorf("with used user_data: %v %s", err, log)
	}
}

// readyLate stands before the function: at first nothing answers, and then something that is not the function.
func readyLate(t *testing.T, to string) (at string, calls *atomic.Int64) {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	calls = &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch calls.Add(1) {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusBadGateway)
		default:
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, calls
}

// TestGuestRejectsChangedBundle does not even decrypt a bundle that was changed on its way or in the database.
func TestGuestRejectsChangedBundle(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	for name, change := range map[string]string{
		"torn":    "bundle = substring(bundle for 40)",
		"changed": "bundle = set_byte(bundle, 20, get_byte(bundle, 20) # 1)",
		"empty":   "bundle = ''",
	} {
		d := deploy(t, database, conn, app.URL, nil)
		move(t, conn, d, change)
		g := newGuest(t, d.userData)
		if log, err := g.boot(t); err == nil || !strings.Contains(log, "is not the one of deployment") ||
			len(g.calls(t)) != 0 {
			t.Errorf("%s: %v %s", name, err, log)
		}
	}
}

// TestGuestWithoutContainerRuntime reports an unknown distribution.
func TestGuestWithoutContainerRuntime(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	d := deploy(t, database, conn, app.URL, nil)
	g := newGuest(t, d.userData)
	if err := os.Remove(filepath.Join(g.root, "bin", "podman")); err != nil {
		t.Fatal(err)
	}
	g.write(t, "/bin/apt-get", "#!/bin/sh\nexit 100\n")
	if log, err := g.boot(t); err == nil || !strings.Contains(log, "neither podman nor docker") {
		t.Errorf("%v %s", err, log)
	}
	if testkit.Scalar[bool](t, conn, "select ready_at is not null from deployments") {
		t.Error("it said that it is ready")
	}
}
