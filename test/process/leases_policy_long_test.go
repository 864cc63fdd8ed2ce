package process_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
	for name, value := range account.Environment() {
		if name != "OS_AUTH_URL" {
			env["LEASES_"+name] = value
		}
	}
	env["LEASES_OS_CLOUD"], env["NODES_OS_CLOUD"] = "", ""
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
