package reconcilemanaged

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// renewing is the store, in which someone renews a trust just after a round has read the connections.
type renewing struct {
	postgres.Managed

	once  sync.Once
	renew func()
}

func (r *renewing) Connections(ctx context.Context, project string) (map[uuid.UUID]*domain.Connection, error) {
	all, err := r.Managed.Connections(ctx, project)
	r.once.Do(r.renew)
	return all, err
}

// round does one round of the world's project. renew renews the trust meanwhile; nil = it stays.
func (w *world) round(t *testing.T, renew func()) {
	t.Helper()
	wake := func(...string) {}
	if renew == nil {
		renew = func() {}
	}
	cloud, err := openstack.New(openstack.Config{Cloud: "collector", ConfigFile: testkit.CloudsYAML(t)},
		openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := cloud.Account(openstack.Config{Cloud: "collector", ConfigFile: testkit.CloudsYAML(t)},
		openstack.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	engine := managed.Engine{
		Store: &renewing{Managed: w.store, renew: renew}, Sessions: newSessions(own, w.db, wake),
		Nodes:   postgres.Nodes{DB: w.db},
		Drivers: drivers(run.Deps{DB: w.db, Wake: wake}), Wake: wake,
		Unseal: func(domain.Managed) (domain.ManagedSecrets, error) { return domain.ManagedSecrets{Payload: "a"}, nil },
	}
	w.exec(t, "update managed_projects set due_at = clock_timestamp(), scan_at = clock_timestamp()")
	due, err := w.store.Queue().Claim(t.Context(), time.Minute, 1, nil)
	if err != nil || len(due.Rows) != 1 {
		t.Fatalf("claimed %d projects: %v", len(due.Rows), err)
	}
	if err := engine.Run(t.Context(), due.Claim, due.Rows[0].Value); err != nil {
		t.Fatal(err)
	}
}

// TestRenewedTrust: a trust that is revoked while a round works, because another one has replaced it, is not lost,
// whether the connection is the same or another one. One that no one has renewed is.
func TestRenewedTrust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.trust(t)
	files := domain.ConfigmapSpec{Data: map[string]string{"a": "b"}}
	w.declare(t, domain.KindConfigmap, "files", files, first, time.Now())
	is := func(what string, status domain.ManagedStatus, connection domain.ConnectionStatus) {
		t.Helper()
		m := w.get(t, domain.KindConfigmap, "files")
		stored := testkit.Scalar[string](t, w.conn, "select status from connections where id = $1", m.ConnectionID)
		if m.Status != status || stored != string(connection) {
			t.Errorf("%s: it is %s, %s; its connection is %s", what, m.Status, m.Reason, stored)
		}
	}

	for range 2 { // it is made, and found
		w.round(t, func() {})
	}
	is("nothing is renewed", domain.ManagedReady, domain.ConnectionActive)

	w.round(t, func() {
		w.DropTrust(t, first.DelegationID)
		w.exec(t, "update connections set delegation_id = $2, generation = generation + 1 where id = $1", first.ID,
			w.trust(t).DelegationID)
	})
	is("the same connection has another trust", domain.ManagedReady, domain.ConnectionActive)

	w.round(t, func() {
		old := testkit.Scalar[string](t, w.conn, "select delegation_id from connections where id = $1", first.ID)
		longer := w.trust(t)
		longer.ExpiresAt = longer.ExpiresAt.Add(time.Hour)
		w.declare(t, domain.KindConfigmap, "more", files, longer, longer.ExpiresAt)
		w.DropTrust(t, old)
	})
	is("another declaration has renewed it", domain.ManagedReady, domain.ConnectionActive)

	w.round(t, func() {
		w.DropTrust(t, testkit.Scalar[string](t, w.conn,
			"select delegation_id from connections where status = 'active'"))
	})
	is("no one has renewed it", domain.ManagedError, domain.ConnectionLost)
}

var update = flag.Bool("update", false, "write the table of docs/roles.md")

const rolesPage = "../../docs/roles.md"

// TestTrustWithoutRole: a resource whose trust lacks the role of its service says with which roles the call was made.
// It does not keep others of its kind from being made, whose trusts have the role.
func TestTrustWithoutRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	poor := w.trust(t)
	w.secret(t, "poor", poor)
	w.secret(t, "rich", w.trust(t, "member", "creator")) // replaces the other one of the same user
	w.exec(t, "update connections set status = 'active' where id = $1", poor.ID)
	w.exec(t, "update managed set connection_id = $1 where name = 'poor'", poor.ID)
	testkit.Eventually(t, time.Minute, "the second secret is ready", func() bool {
		w.round(t, nil)
		return w.get(t, domain.KindSecret, "rich").Status == domain.ManagedReady
	})
	const want = "the trust of the resource has only the roles member"
	if m := w.get(t, domain.KindSecret, "poor"); m.Status != domain.ManagedError || !strings.Contains(m.Reason, want) {
		t.Errorf("the first secret is %s: %s", m.Status, m.Reason)
	}
}

// TestLongRolesOfKinds makes and deletes a resource of each kind with trusts of several roles: each kind works with the
// roles that the product gives its trusts, and with none less. The table of docs/roles.md shows it; -update writes it.
func TestLongRolesOfKinds(t *testing.T) {
	t.Parallel()
	var setting delegation.ManagedConfig
	err := envconfig.ProcessWith(t.Context(), &envconfig.Config{
		Target: &setting, Lookuper: envconfig.MapLookuper(nil),
	})
	required, faults := setting.KindRoles()
	if err != nil || faults != nil {
		t.Fatal(err, faults)
	}
	sets := [][]string{
		{"reader"},
		{"member"},
		{"member", "load-balancer_member"},
		{"member", "creator"},
		{"load-balancer_member"},
		{"creator"},
	}
	works := make([]map[domain.Kind]bool, len(sets))
	t.Run("sets", func(t *testing.T) {
		for n, set := range sets {
			t.Run(strings.Join(set, "+"), func(t *testing.T) {
				t.Parallel()
				works[n] = newWorld(t).tryKinds(t, set)
			})
		}
	})
	var text strings.Builder
	text.WriteString("| kind | roles of its trust |")
	for _, set := range sets {
		text.WriteString(" " + quoted(set) + " |")
	}
	text.WriteString("\n" + strings.Repeat("|---", len(sets)+2) + "|\n")
	for _, kind := range domain.Kinds() {
		given := append([]string{"member"}, required[kind]...)
		fmt.Fprintf(&text, "| `%s` | %s |", kind, quoted(given))
		for n, set := range sets {
			has := map[bool]string{true: " yes |", false: " no |"}
			text.WriteString(has[works[n][kind]])
			if slices.Equal(set, given) && !works[n][kind] {
				t.Errorf("%s does not work with the roles of its trust, %v", kind, set)
			}
			// Octavia's policies of 2025.1 do not require its own roles.
			isLess := works[n][kind] && testkit.SandboxSetting(t, "RELEASE") != "epoxy"
			if len(required[kind]) > 0 && slices.Equal(set, []string{"member"}) && isLess {
				t.Errorf("%s works with member alone: its trust has more, %v", kind, given)
			}
		}
		text.WriteString("\n")
	}
	if testkit.SandboxSetting(t, "RELEASE") == "epoxy" {
		t.Logf("the page has the roles that Zed's policies require, and not these:\n%s", text.String())
		return
	}
	table := text.String()
	page, err := os.ReadFile(rolesPage)
	if err != nil {
		t.Fatal(err)
	}
	from := strings.Index(string(page), "| kind | roles of its trust |")
	length := strings.Index(string(page)[from:], "\n\n") + 1
	if string(page)[from:from+length] == table || t.Failed() {
		return
	}
	if !*update {
		t.Fatalf("%s has another table: run this test with -update; it is\n%s", rolesPage, table)
	}
	changed := string(page)[:from] + table + string(page)[from+length:]
	if err := os.WriteFile(rolesPage, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

func quoted(names []string) string { return "`" + strings.Join(names, "`, `") + "`" }

// isForbidden reports whether a service has refused what a resource needs.
func isForbidden(m domain.Managed) bool {
	reasons := []string{m.Reason}
	for _, c := range m.Conditions {
		reasons = append(reasons, c.Message)
	}
	return slices.ContainsFunc(reasons, func(reason string) bool {
		return strings.Contains(reason, "has only the roles") || strings.Contains(reason, "Policy doesn't allow")
	})
}

// secret declares a secret.
func (w *world) secret(t *testing.T, name string, by *domain.Connection) {
	t.Helper()
	w.declare(t, domain.KindSecret, name, domain.SecretSpec{ContentType: "text/plain"}, by, time.Now())
}

// tryKinds declares a resource of each kind with a trust of some roles, and deletes those that become ready.
func (w *world) tryKinds(t *testing.T, roles []string) map[domain.Kind]bool {
	t.Helper()
	t.Cleanup(func() {
		w.DeleteLoadBalancers(t)
		w.DeleteVolumes(t)
	})
	w.Grant(t, w.UserID, "reader")
	here := testkit.Sandbox(t)
	machine := domain.MachineSpec{Flavor: here.Flavor, Image: here.Image, Networks: []string{here.Network}}
	deployment := domain.DeploymentSpec{MachineSpec: machine, Count: 1}
	pod := domain.PodTemplate{Containers: []domain.Container{{Name: "web", Image: "web:1"}}}
	by := w.trust(t, roles...)
	for kind, spec := range map[domain.Kind]any{
		domain.KindMachine: machine, domain.KindDeployment: deployment,
		domain.KindPod:           domain.PodSpec{MachineSpec: machine, PodTemplate: pod},
		domain.KindPodDeployment: domain.PodDeploymentSpec{DeploymentSpec: deployment, PodTemplate: pod},
		domain.KindVolume:        domain.VolumeSpec{SizeGB: 1},
		domain.KindImage: domain.ImageSpec{
			DiskFormat: "raw", ContainerFormat: "bare", Content: "YQ==",
		},
		domain.KindBalancer: domain.BalancerSpec{Network: here.Network, Listeners: []domain.ListenerSpec{{
			Port: 80, Protocol: "TCP", MemberPort: 80, Algorithm: "ROUND_ROBIN", Addresses: []string{"10.0.0.9"},
		}}},
		domain.KindConfigmap: domain.ConfigmapSpec{Data: map[string]string{"a": "b"}},
	} {
		w.declare(t, kind, "one", spec, by, time.Now())
	}
	w.secret(t, "one", by)
	works := map[domain.Kind]bool{}
	testkit.Eventually(t, 2*time.Minute, "each is ready, or is refused", func() bool {
		w.round(t, nil)
		isOpen := false
		for _, kind := range domain.Kinds() {
			m := w.get(t, kind, "one")
			works[kind] = m.Status == domain.ManagedReady
			isOpen = isOpen || !works[kind] && !isForbidden(m)
		}
		return !isOpen
	})
	for _, kind := range domain.Kinds() {
		if _, err := w.store.Delete(t.Context(), w.get(t, kind, "one"), nil); err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, 2*time.Minute, "what was made is deleted", func() bool {
		w.round(t, nil)
		return testkit.Scalar[int](t, w.conn, "select count(*)::int from managed_members where object_id <> ''") == 0
	})
	return works
}
