package reconcilemanaged

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
			if len(required[kind]) > 0 && slices.Equal(set, []string{"member"}) && works[n][kind] {
				t.Errorf("%s works with member alone: its trust has more, %v", kind, given)
			}
		}
		text.WriteString("\n")
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
	by := w.trust(t, roles...)
	for kind, spec := range map[domain.Kind]any{
		domain.KindMachine: machine, domain.KindDeployment: domain.DeploymentSpec{MachineSpec: machine, Count: 1},
		domain.KindVolume: domain.VolumeSpec{SizeGB: 1},
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
