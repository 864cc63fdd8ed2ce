package process_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongNodesPolicy: with a role of its own and the policy of docs/operation.md the account watches and drains. With
// a rule less the problem names it. Nova's API runs once more for it, with a policy of its own.
func TestLongNodesPolicy(t *testing.T) {
	testkit.Heavy(t)
	hosts, database := testkit.ReservableHosts(t), testkit.Database(t)
	role := newRole(t)
	watching, draining := policyLines(t, role)
	nova := newPolicedNova(t)
	nova.allow(t, watching...)

	account := testkit.NewProject(t)
	account.Leave(t)
	account.Grant(t, account.UserID, role)
	login := account.Environment()
	env := map[string]string{
		"FUNCTION_TARGET": "watch-nodes", "OS_CLOUD": "", "NODES_OS_CLOUD": "", "OS_AUTH_URL": login["OS_AUTH_URL"],
		"OS_COMPUTE_ENDPOINT_OVERRIDE": nova.url,
	}
	for name, value := range login {
		if name != "OS_AUTH_URL" {
			env["NODES_"+name] = value
		}
	}
	conn := testkit.Connect(t, database)
	watcher := testkit.Spawn(t, testkit.Env(t, database, env))
	tick := func() { ping(watcher, "watch-nodes"); time.Sleep(time.Second) }
	problem := func() string {
		return testkit.Scalar[string](t, conn, "select coalesce((select reason from monitors), '')")
	}
	t.Cleanup(func() {
		if t.Failed() {
			watcher.Kill()
			t.Logf("the watcher's log: %s", watcher.Log())
		}
	})
	testkit.Eventually(t, time.Minute, "the nodes are up", func() bool {
		tick()
		return testkit.Scalar[int](t, conn, "select count(*)::int from nodes where status = 'up'") >= len(hosts)
	})
	for _, less := range watching {
		rule := strings.Split(less, `"`)[1]
		if rule != "os_compute_api:os-availability-zone:detail" { // the others are needed when all is read
			readWhole(t, conn)
		}
		nova.allow(t, slices.DeleteFunc(slices.Clone(watching), func(line string) bool { return line == less })...)
		if rule == "os_compute_api:os-services:update" {
			nova.refusesToCordon(t, account, hosts[1])
			continue
		}
		testkit.Eventually(t, time.Minute, "the problem names "+rule, func() bool {
			tick()
			return strings.Contains(problem(), rule)
		})
		t.Logf("without %s: %s", rule, problem())
	}
	nova.allow(t, watching...)
	testkit.Eventually(t, time.Minute, "the nodes are read again", func() bool { tick(); return problem() == "" })

	d := &drainer{running: watcher, from: hosts[0], to: hosts[1], admin: testkit.Session(t, "admin")}
	d.conn, d.store = conn, drainStore(t, database)
	d.api = testkit.Spawn(t, testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "nodes"})).
		As(testkit.Token(t, "admin"))
	servers := testkit.NewProject(t).ServersOn(t, d.from, "moves", 3)
	testkit.Act(t, servers[0].ID, map[string]any{"os-stop": nil})
	testkit.Act(t, servers[1].ID, map[string]any{"lock": nil})
	testkit.Eventually(t, time.Minute, "one is stopped", func() bool {
		return d.count(t, d.from) == "ACTIVE 2, SHUTOFF 1"
	})
	id := d.drain(t, d.from, 2)
	testkit.Eventually(t, time.Minute, "the drain says what it may not", func() bool {
		d.tick()
		return strings.Contains(d.get(t, id).Reason, "os_compute_api:servers:detail")
	})
	t.Logf("the drain waits: %s", d.get(t, id).Reason)
	nova.allow(t, draining...)
	done := d.ends(t, id)
	if moved, left, skipped := done.Counts(); done.Status != domain.DrainDone || moved != 3 || left+skipped != 0 {
		t.Errorf("the drain is %s (%s): %+v", done.Status, done.Reason, done.Servers)
	}
	if got := d.count(t, d.to); got != "ACTIVE 2, SHUTOFF 1" {
		t.Errorf("on %s are %s", d.to, got)
	}
}

// readWhole has the next poll read services and hypervisors.
func readWhole(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "update monitors set details_at = null"); err != nil {
		t.Fatal(err)
	}
}

// newRole makes a role, which is deleted after the test.
func newRole(t *testing.T) (name string) {
	t.Helper()
	name = "test-nodes-" + uuid.NewString()[:8]
	keystone := testkit.Identity(t, testkit.Login(t, "admin"))
	role, err := roles.Create(t.Context(), keystone, roles.CreateOpts{Name: name}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := roles.Delete(context.Background(), keystone, role.ID).ExtractErr(); err != nil {
			t.Error(err)
		}
	})
	return name
}

// policyLines reads from the docs the rules for watching and for drains, with the test's role.
func policyLines(t *testing.T, role string) (watching, draining []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "operation.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "role:cloudfn_nodes", "role:"+role)) {
		switch line = strings.TrimSpace(line); {
		case !strings.Contains(line, role): // another account's
		case strings.HasPrefix(line, `"os_compute_api:`):
			watching = append(watching, line)
		case strings.HasPrefix(line, `"context_is_admin"`):
			draining = append(draining, line)
		}
	}
	if len(watching) != 4 || len(draining) != 1 {
		t.Fatalf("the docs have the rules %q and %q", watching, draining)
	}
	return watching, draining
}

// policedNova is another process of the sandbox's nova-api, with a policy that a test changes.
type policedNova struct{ policed }

func newPolicedNova(t *testing.T) policedNova {
	t.Helper()
	of := func(name string) string { return filepath.Join(sandboxDir(t), "conf", "nova", name) }
	nova := policedService(t, "nova-api", "nova.cmd.api_os_compute:main", "osapi_compute_listen_port",
		of("nova.conf"), of("db-cell0.conf"))
	nova.url += "/v2.1"
	return policedNova{nova}
}

// refusesToCordon checks that Nova names the rule without which a host cannot be disabled.
func (n policedNova) refusesToCordon(t *testing.T, account *testkit.Project, host string) {
	t.Helper()
	cfg := openstack.Config{AuthURL: account.Environment()["OS_AUTH_URL"], Interface: "public"}
	cfg.Compute = n.url
	cloud, err := openstack.New(cfg, openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer cloud.Close()
	session := cloud.As(domain.Secret(account.Token(t)), account.ID)
	found, err := session.ComputeService(t.Context(), host)
	if err == nil {
		err = session.DisableService(t.Context(), found.ServiceID, "cloudfn: must not be allowed")
	}
	if apperr.CodeOf(err) != apperr.Forbidden || !strings.Contains(err.Error(), "os-services:update") {
		t.Errorf("to cordon without its rule: %v", err)
	}
	t.Logf("without its rule: %v", err)
}
