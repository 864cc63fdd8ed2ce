package docs

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// The URL and the clouds.yaml that the pages contain. Tests replace them.
const (
	pageURL    = "http://127.0.0.1:8080"
	pageClouds = "/var/tmp/cloudfn-sandbox/clouds.yaml"
)

// TestLongReceiveCallbacks runs the commands of the page.
func TestLongReceiveCallbacks(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	w := reader(t, map[string]*testkit.Project{"demo": project})
	w.env["OS_CLOUD"] = "demo"
	w.replace = append(w.replace, [2]string{"9000", testkit.FreePort(t)})
	w.walk(t, "receive-callbacks.md")
}

// TestLongRunShowsThatItBuilds: `make run` prints every ten seconds that it still builds.
func TestLongRunShowsThatItBuilds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shown := filepath.Join(dir, "stderr")
	builder := "#!/bin/sh\nuntil grep -q 'building for' " + shown + "; do sleep 0.2; done\nexit 3\n"
	if err := os.WriteFile(filepath.Join(dir, "make"), []byte(builder), 0o700); err != nil {
		t.Fatal(err)
	}
	stderr, err := os.Create(shown)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join("..", "scripts", "run"))
	cmd.Stderr = stderr
	cmd.Env = append(os.Environ(), "OS_CLOUD=none", "DATABASE_URL=none", "PATH="+dir+":"+os.Getenv("PATH"))
	_ = cmd.Run()
	text, err := os.ReadFile(shown)
	if code := cmd.ProcessState.ExitCode(); err != nil || code != 3 || strings.Contains(string(text), "erminated") {
		t.Errorf("it ends with %d, %v, after\n%s", code, err, text)
	}
}

// reader returns a walker with a daemon, and with the CLI for the members of the given projects.
func reader(t *testing.T, members map[string]*testkit.Project) *walker {
	t.Helper()
	return readerWith(t, members, nil)
}

// readerWith is a reader whose daemon has more settings.
func readerWith(t *testing.T, members map[string]*testkit.Project, more map[string]string) *walker {
	t.Helper()
	allowed := []string{}
	for _, p := range members {
		allowed = append(allowed, p.ID)
	}
	settings := map[string]string{"STATS_BACKFILL": "2h", "ALLOWED_PROJECTS": strings.Join(allowed, ",")}
	maps.Copy(settings, more)
	daemon := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), settings))
	w := terminals(t, daemon.URL)
	clouds := testkit.CloudsFile(t, members)
	w.env["OS_CLIENT_CONFIG_FILE"], w.env["CLOUDFN_URL"] = clouds, daemon.URL
	w.env["PATH"] = filepath.Dir(testkit.Program(t, "cloudfn")) + string(os.PathListSeparator) + os.Getenv("PATH")
	w.replace = append(w.replace, [2]string{pageClouds, clouds})
	return w
}

// terminals returns a walker for a daemon at a URL.
func terminals(t *testing.T, url string) *walker {
	t.Helper()
	return &walker{
		replace: [][2]string{{pageURL, url}},
		env:     map[string]string{"CLOUDFN_CACHE_DIR": t.TempDir(), "no_proxy": "*", "LC_ALL": "C.UTF-8"},
	}
}

// TestLongDevStack runs the commands of the page against the sandbox, with the account that the page creates.
func TestLongDevStack(t *testing.T) {
	t.Parallel()
	port, name := testkit.FreePort(t), fmt.Sprintf("cloudfn-%x", rand.Uint64())
	w := terminals(t, "http://127.0.0.1:"+port)
	dir := t.TempDir()
	clouds := filepath.Join(dir, "clouds.yaml")
	text := strings.Replace(read(t, testkit.CloudsYAML(t)), "\n  admin:\n", "\n  devstack-admin:\n", 1)
	if err := os.WriteFile(clouds, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.OpenStack(t, "admin", "user", "delete", name) })
	w.env["OS_CLIENT_CONFIG_FILE"], w.env["PORT"] = clouds, port
	w.env["DATABASE_URL"], w.env["STATS_BACKFILL"] = testkit.EmptyDatabase(t), "1h"
	w.env["ALLOWED_PROJECTS"] = testkit.OpenStack(t, "admin", "token", "issue", "-f", "value", "-c", "project_id")
	w.replace = append(
		w.replace, [2]string{"make build", "true"}, [2]string{".local/bin/cloudfnd", testkit.Binary(t)},
		[2]string{"$PWD/.local/devstack", dir + "/devstack"}, [2]string{" .local/devstack", " " + dir + "/devstack"},
		[2]string{"--user cloudfn", "--user " + name},
		[2]string{`"$PASSWORD" cloudfn`, `"$PASSWORD" ` + name}, [2]string{"username: cloudfn", "username: " + name},
	)
	w.walk(t, "devstack.md")
}

// TestLongDelegate runs the commands of the pages about delegation: those of the owner, and those of the manager.
func TestLongDelegate(t *testing.T) {
	t.Parallel()
	owner := testkit.NewProject(t)
	owner.Network(t, "private", "10.0.0.0/24")
	w := reader(t, map[string]*testkit.Project{"demo": owner, "alt": testkit.NewProject(t)})
	w.replace = append(w.replace, [2]string{"demo in demo", "... in ..."})
	// The reader has another connection already, which the pages leave alone.
	const another = "cloudfn --os-cloud demo connections create --kind trust --actions start --expires 24h -o name"
	if out, status := open(t, w.env).run(t, another); status != 0 {
		t.Fatal(out)
	}
	for _, page := range []string{"delegate.md", "request-connection.md", "application-credential.md"} {
		w.walk(t, page)
	}
}

// TestLongReserveHosts runs the commands of the page: those of the admin, and those of the user.
func TestLongReserveHosts(t *testing.T) {
	t.Parallel()
	hosts, project := testkit.ReservableHosts(t), testkit.NewProject(t)
	project.Network(t, "private", "10.0.0.0/24")
	w := adminReader(t, project)
	w.replace = append(w.replace, [2]string{"compute-3", hosts[0]})
	w.walk(t, "reserve-hosts.md")
}

// TestLongMaintainHost runs the commands of the page on the sandbox's isolated hosts, so that no other test's servers
// move.
func TestLongMaintainHost(t *testing.T) {
	t.Parallel()
	hosts, project := testkit.ReservableHosts(t), testkit.NewProject(t)
	byName := map[string]string{}
	for _, s := range project.ServersOn(t, hosts[0], "web", 3) { // web-1 to web-3
		byName[s.Name] = s.ID
	}
	project.Stop(t, byName["web-2"])
	testkit.Act(t, byName["web-3"], map[string]any{"os-resetState": map[string]any{"state": "error"}})
	w := adminReader(t, project)
	w.replace = append(w.replace, [2]string{"compute-1", hosts[0]}, [2]string{"compute-2", hosts[1]},
		[2]string{"delete --all-projects web-3", "delete " + byName["web-3"]})
	w.walk(t, "maintain-host.md")
}

// TestLongGiveServersAnEnd runs the commands of the page, with a daemon that gives every launch a lease.
func TestLongGiveServersAnEnd(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	project.Network(t, "private", "10.0.0.0/24")
	w := readerWith(t, map[string]*testkit.Project{"demo": project}, map[string]string{"DEFAULT_LEASE": "P1M"})
	w.walk(t, "give-servers-an-end.md")
}

// adminReader returns a reader who is an admin, too.
func adminReader(t *testing.T, project *testkit.Project) *walker {
	t.Helper()
	admin := testkit.OpenStack(t, "admin", "token", "issue", "-f", "value", "-c", "project_id")
	daemon := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{
		"STATS_BACKFILL": "1h", "ALLOWED_PROJECTS": project.ID + "," + admin,
	}))
	w := terminals(t, daemon.URL)
	clouds := testkit.CloudsFile(t, map[string]*testkit.Project{"demo": project})
	_, others, _ := strings.Cut(read(t, testkit.CloudsYAML(t)), "\n  admin:\n")
	others, _, _ = strings.Cut(others, "\n  demo:\n")
	text := read(t, clouds) + "  admin:\n" + others + "\n"
	if err := os.WriteFile(clouds, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.env["OS_CLIENT_CONFIG_FILE"], w.env["CLOUDFN_URL"] = clouds, daemon.URL
	w.env["PATH"] = filepath.Dir(testkit.Program(t, "cloudfn")) + string(os.PathListSeparator) + os.Getenv("PATH")
	w.replace = append(w.replace, [2]string{pageClouds, clouds})
	return w
}

// TestLongDeclareServers runs the commands of the page.
func TestLongDeclareServers(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	project.Network(t, "private", "10.0.0.0/24")
	reader(t, map[string]*testkit.Project{"demo": project}).walk(t, "declare-servers.md")
}

// TestLongReachAServer runs the commands of the pages, which are a server's life by the CLI and by HTTP, with
// OpenStack's client beside it. At the end the project has no more than before.
func TestLongReachAServer(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"reach-a-server.md", "servers-by-http.md"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			project := testkit.NewProject(t)
			project.RoutedNetwork(t, "private", "10.0.0.0/24")
			t.Cleanup(func() { project.DeleteVolumes(t) })
			w := reader(t, map[string]*testkit.Project{"demo": project})
			w.env["OS_CLOUD"], w.dir = "demo", t.TempDir()
			before := w.possessions(t)
			w.walk(t, page)
			if after := w.possessions(t); after != before {
				t.Errorf("the project has\n%s\nand had\n%s", after, before)
			}
		})
	}
}

// possessions returns the ids of what a server can leave behind in the project of OS_CLOUD, kind by kind.
func (w *walker) possessions(t *testing.T) string {
	t.Helper()
	out, status := open(t, w.env).run(t, "(set -eo pipefail; "+
		"for list in 'server list' 'volume list' 'volume snapshot list' 'image list --private' 'port list' "+
		"'floating ip list' 'security group list'; do "+
		"echo $list; openstack $list -f value -c ID | sort; done)")
	if status != 0 {
		t.Fatal(out)
	}
	return out
}

// TestREADME runs the request in the README.
func TestREADME(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	project.Network(t, "private", "10.0.0.0/24")
	w := reader(t, map[string]*testkit.Project{"demo": project})
	w.env["OS_CLOUD"] = "demo"
	w.walk(t, "../README.md")
}

// TestTour runs the commands of the page as a newcomer does, beginning with make run. Only the port, the database
// and the project differ.
func TestTour(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	project.Network(t, "private", "10.0.0.0/24")
	port, clouds := testkit.FreePort(t), testkit.CloudsFile(t, map[string]*testkit.Project{"demo": project})
	url := "http://127.0.0.1:" + port
	w := terminals(t, url)
	w.env["PORT"], w.env["CLOUDFN_URL"], w.env["DATABASE_URL"] = port, url, testkit.EmptyDatabase(t)
	w.env["ALLOWED_PROJECTS"] = project.ID
	w.replace = append(w.replace, [2]string{pageClouds, clouds}, [2]string{
		"demo in project demo", "... in project ...",
	})
	w.walk(t, "tour.md")
	for _, path := range []string{"/console/", "/v1/docs"} {
		client := testkit.Client{URL: url}
		if status, err := client.Status(path); status != http.StatusOK {
			t.Errorf("%s answers %d, %v", path, status, err)
		}
	}
}
