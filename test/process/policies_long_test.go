package process_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
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

// policed is another process of a service of the sandbox, with a policy that a test changes.
type policed struct{ url, policy string }

func sandboxDir(t *testing.T) string { t.Helper(); return filepath.Dir(testkit.CloudsYAML(t)) }

// policedService runs a service once more, with its configuration files.
func policedService(t *testing.T, name, entry, portOption string, files ...string) policed {
	t.Helper()
	dir, lib := t.TempDir(), filepath.Join(sandboxDir(t), "lib")
	p, port := newPoliced(t, dir)
	conf := filepath.Join(dir, "policed.conf")
	text := fmt.Sprintf("[DEFAULT]\n%s = %s\n[oslo_policy]\npolicy_file = %s\n", portOption, port, p.policy)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"/usr/bin/python3", filepath.Join(lib, "svc.py"), name, entry}
	for _, file := range append(files, conf) {
		args = append(args, "--config-file", file)
	}
	p.serve(t, testkit.InSandbox(args...))
	return p
}

// newPolicedPlacement runs Placement once more.
func newPolicedPlacement(t *testing.T) policed {
	t.Helper()
	dir, sandbox := t.TempDir(), sandboxDir(t)
	p, port := newPoliced(t, dir)
	text, err := os.ReadFile(filepath.Join(sandbox, "conf", "placement", "placement.conf"))
	if err == nil {
		text = fmt.Appendf(text, "\n[oslo_policy]\npolicy_file = %s\n", p.policy)
		err = os.WriteFile(filepath.Join(dir, "placement.conf"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := testkit.InSandbox("/usr/bin/python3", filepath.Join(sandbox, "lib", "sandbox_wsgi.py"),
		"placement.wsgi:init_application", "127.0.0.1", port, "4")
	cmd.Env = []string{"OS_PLACEMENT_CONFIG_DIR=" + dir}
	p.serve(t, cmd)
	return p
}

func newPoliced(t *testing.T, dir string) (p policed, port string) {
	t.Helper()
	port = testkit.FreePort(t)
	p = policed{"http://127.0.0.1:" + port, filepath.Join(dir, "policy.yaml")}
	p.allow(t)
	return p, port
}

// serve starts the process, and waits until it answers. It ends with the test.
func (p policed) serve(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Env = append(append(os.Environ(), cmd.Env...), "PYTHONPATH="+filepath.Join(sandboxDir(t), "lib"),
		"PYTHONWARNINGS=ignore")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testkit.Eventually(t, 2*time.Minute, "another process serves "+p.url, func() bool {
		time.Sleep(time.Second)
		resp, err := http.Get(p.url + "/")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode < http.StatusInternalServerError
	})
}

// policies counts those that were written.
var policies atomic.Int32

// allow replaces the policy. The service reads it before the next call, when the file's time has changed.
func (p policed) allow(t *testing.T, lines ...string) {
	t.Helper()
	text := []byte(strings.Join(append(lines, `"unused": "@"`), "\n") + "\n")
	next := p.policy + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		t.Fatal(err)
	}
	// A later time than that of any policy before, also within one tick of the file system's clock.
	at := time.Now().Add(time.Duration(policies.Add(1)) * time.Second)
	if err := os.Chtimes(next, at, at); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, p.policy); err != nil {
		t.Fatal(err)
	}
}

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
	env := map[string]string{
		"FUNCTION_TARGET": "watch-nodes", "OS_CLOUD": "", "NODES_OS_CLOUD": "",
		"OS_COMPUTE_ENDPOINT_OVERRIDE": nova.url,
	}
	maps.Copy(env, account.Environment())
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

// TestLongLeasesPolicy: with a role of its own and the policies of docs/operation.md the account does a whole lease of
// a host. With a rule less the service that misses it names it. Nova, Placement and Glance run once more for it.
func TestLongLeasesPolicy(t *testing.T) {
	testkit.Heavy(t)
	host := testkit.ReservableHosts(t)[0]
	role := newRole(t)
	rules := leasePolicies(t, role)
	nova, placement := newPolicedNova(t), newPolicedPlacement(t)
	glance := policedService(t, "glance", "glance.cmd.api:main", "bind_port",
		filepath.Join(sandboxDir(t), "conf", "glance", "glance-api.conf"))
	account := testkit.NewProject(t)
	account.Leave(t)
	account.Grant(t, account.UserID, role)
	account.Grant(t, account.UserID, "member")
	cfg := openstack.Config{AuthURL: account.Environment()["OS_AUTH_URL"], Interface: "public"}
	cfg.Compute, cfg.Placement, cfg.Image = nova.url, placement.url, glance.url
	cloud, err := openstack.New(cfg, openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	session := cloud.As(domain.Secret(account.Token(t)), account.ID)
	target, err := admin(t).ComputeHost(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	name := "cloudfn-test-" + uuid.NewString()[:8]
	trait := "CUSTOM_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	owner := admin(t)
	t.Cleanup(func() {
		ctx, session := context.Background(), owner
		if a, found, err := session.FindAggregate(ctx, name); err == nil && found {
			err = errors.Join(session.RemoveHost(ctx, a, host, target.ProviderID), session.DeleteAggregate(ctx, a.ID))
			if err != nil {
				t.Error(err)
			}
		}
		if err := session.DeleteTrait(ctx, trait); err != nil {
			t.Error(err)
		}
	})
	if err := admin(t).EnsureTrait(t.Context(), trait); err != nil {
		t.Fatal(err)
	}
	for rule, call := range accountCalls(session, target, name, trait) {
		nova.allow(t, rules["nova"]...)
		placement.allow(t, slices.DeleteFunc(slices.Clone(rules["placement"]), func(line string) bool {
			return strings.HasPrefix(line, `"`+rule+`"`)
		})...)
		if rule == "context_is_admin" {
			nova.allow(t)
		}
		err := call(t.Context())
		isNamed := rule == "context_is_admin" || err != nil && strings.Contains(err.Error(), rule)
		if apperr.CodeOf(err) != apperr.Forbidden || !isNamed {
			t.Errorf("without %s: %v", rule, err)
		}
		t.Logf("without %s: %v", rule, err)
	}
	nova.allow(t, rules["nova"]...)
	placement.allow(t, rules["placement"]...)
	glance.allow(t, rules["glance"]...)

	to := map[string]string{"compute": nova.url, "placement": placement.url, "image": glance.url}
	env := testkit.RedirectTo(t, to).Env(t, "collector")
	auth := map[string]string{}
	for name, value := range account.Environment() {
		auth[strings.ToLower(strings.TrimPrefix(name, "OS_"))] = value
	}
	clouds, err := json.Marshal(map[string]any{"clouds": map[string]any{"hosts": map[string]any{"auth": auth}}})
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := cmp.Or(err, os.WriteFile(file, clouds, 0o600)); err != nil {
		t.Fatal(err)
	}
	env["OS_CLIENT_CONFIG_FILE"], env["LEASES_OS_CLOUD"], env["NODES_OS_CLOUD"] = file, "hosts", ""
	l := newLessee(t, env)
	t.Cleanup(func() {
		if t.Failed() {
			l.process.Kill()
			t.Logf("its log: %s", l.process.Log())
		}
	})
	l.reserve(t, host)
	lease := l.lease(t, fmt.Sprintf(`{"name": "workshop", "duration": "PT1H", "on_end": "snapshot_delete",
		"reservations": [{"type": "host", "min": 1, "flavors": [%q]}]}`, testkit.Sandbox(t).Flavor))
	reservation := l.becomes(t, lease.ID, domain.LeaseActive).Reservations[0]
	l.launch(t, fmt.Sprintf(`, "reservation_id": %q`, reservation.ID))
	l.at(t, lease.ID, "ends_at = clock_timestamp()")
	l.becomes(t, lease.ID, domain.LeaseEnded)
	if left := l.leftOf(t, reservation.ID, reservation.Flavors[0].ID); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	images, err := l.Session(t).Images(t.Context(), "")
	if err != nil || !slices.ContainsFunc(images, func(i domain.Image) bool {
		return strings.HasPrefix(i.Name, "leased-") && i.Visibility != "public"
	}) {
		t.Errorf("the project does not have the image: %+v %v", images, err)
	}
	l.DeleteImages(t)
}

// leasePolicies reads from the docs the rules of each service, with the test's role.
func leasePolicies(t *testing.T, role string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "operation.md"))
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string][]string{}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "role:cloudfn_leases", "role:"+role)) {
		switch line = strings.TrimSpace(line); {
		case !strings.HasPrefix(line, `"`) || !strings.Contains(line, role):
		case strings.HasPrefix(line, `"placement:`):
			rules["placement"] = append(rules["placement"], line)
		default:
			rules["nova"] = append(rules["nova"], line)
			rules["glance"] = append(rules["glance"], line)
		}
	}
	if len(rules["placement"]) != 8 || len(rules["nova"]) != 1 {
		t.Fatalf("the docs have the rules %q", rules)
	}
	return rules
}

// accountCalls have for each rule a call that needs it.
func accountCalls(
	s *openstack.Session, host domain.ComputeHost, aggregateName, trait string,
) map[string]func(context.Context) error {
	inventory := func(ctx context.Context) error {
		_, err := s.HostInventory(ctx, host)
		return err
	}
	aggregate := func(ctx context.Context) error { // Nova has changed Placement's copy, too, when the host leaves
		a, err := s.EnsureAggregate(ctx, aggregateName, nil)
		if err == nil {
			err = s.AddHost(ctx, a, host.Name, host.ProviderID)
		}
		if err == nil {
			err = s.RemoveHost(ctx, a, host.Name, host.ProviderID)
		}
		return err
	}
	return map[string]func(context.Context) error{
		"context_is_admin": func(ctx context.Context) error { _, err := s.Aggregates(ctx); return err },
		"placement:traits:update": func(ctx context.Context) error {
			return s.EnsureTrait(ctx, trait)
		},
		"placement:traits:delete": func(ctx context.Context) error {
			return s.DeleteTrait(ctx, trait)
		},
		"placement:resource_providers:inventories:list": inventory,
		"placement:resource_providers:usages":           inventory,
		"placement:resource_providers:traits:list":      inventory,
		"placement:resource_providers:traits:update": func(ctx context.Context) error {
			return s.SetProviderTrait(ctx, host.ProviderID, trait, true)
		},
		"placement:resource_providers:aggregates:list":   aggregate,
		"placement:resource_providers:aggregates:update": aggregate,
	}
}
