package openstack_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestComputeHosts(t *testing.T) {
	t.Parallel()
	admin, p := testkit.Session(t, "admin"), testkit.NewProject(t)
	made := p.Boot(t, "there", 1)[0]
	var hosts []domain.ComputeHost
	var err error
	testkit.Eventually(t, 2*time.Minute, "all hosts of the sandbox have reported", func() bool {
		if hosts, err = admin.ComputeHosts(t.Context()); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(hosts, func(h domain.ComputeHost) bool {
			return !strings.HasPrefix(h.Name, "dead-") && (!h.IsUp || time.Since(h.SeenAt) > time.Minute)
		})
	})
	if err := admin.HostInventories(t.Context(), hosts); err != nil || len(hosts) < 2 {
		t.Fatalf("%v %v", hosts, err)
	}
	found := 0
	for _, h := range hosts {
		if strings.HasPrefix(h.Name, "dead-") { // it is of a test that deletes it
			continue
		}
		// Tests that run at the same time disable compute-3 and compute-4, with a reason.
		if h.Zone != "nova" || h.IsEnabled != (h.DisabledReason == "") {
			t.Errorf("%+v", h)
		}
		// Nova's fake driver has 1000 CPUs, and the sandbox's ratios are 16, 1.5 and 1.
		if h.VCPUs != 16_000 || h.RAMMB != (800_000-512)*3/2 || h.DiskGB != 600_000 ||
			!slices.Contains(h.Traits, "COMPUTE_NODE") {
			t.Errorf("%+v", h)
		}
		for name, want := range map[string]string{
			"hypervisor_type": "fake", "hypervisor_version": "1000", "cpu_info:arch": "x86_64",
			"cpu_info:topology:sockets": "4", "cpu_info:features": `["pge","clflush"]`,
		} {
			if got := h.Attributes[name]; got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		servers, err := admin.HostServers(t.Context(), h.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range servers {
			if s.ID == made.ID {
				found++
				if h.Servers == 0 || h.UsedRAMMB == 0 || s.ProjectID != p.ID || s.Status != "ACTIVE" {
					t.Errorf("%+v has %+v", h, s)
				}
			}
		}
	}
	if found != 1 {
		t.Errorf("the server is on %d hosts", found)
	}
	if _, err := admin.ComputeHost(t.Context(), "nowhere"); apperr.CodeOf(err) != apperr.NotFound {
		t.Error(err)
	}
	if _, err := testkit.Session(t, "demo").ComputeHosts(t.Context()); apperr.CodeOf(err) != apperr.Forbidden {
		t.Errorf("a member sees hosts: %v", err)
	}
}

// TestHostReportsAgree: what is cheap to read says the same of a host as Nova's list of services.
func TestHostReportsAgree(t *testing.T) {
	t.Parallel()
	admin := testkit.Session(t, "admin")
	services, err := admin.ComputeServices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reports, err := admin.HostReports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"compute-1", "compute-2"} { // no test disables these
		of := func(hosts []domain.ComputeHost) (h domain.ComputeHost) {
			if n := slices.IndexFunc(hosts, func(h domain.ComputeHost) bool { return h.Name == name }); n >= 0 {
				h = hosts[n]
			}
			return h
		}
		a, b := of(services), of(reports)
		if b.Name == "" || a.Zone != b.Zone || a.IsUp != b.IsUp || !b.IsEnabled || !a.IsBrief || !b.IsBrief ||
			b.SeenAt.Sub(a.SeenAt).Abs() > time.Minute {
			t.Errorf("%s is %+v in the list of services, and reports %+v", name, a, b)
		}
	}
	if next, err := admin.DescribeHosts(t.Context(), services, ""); err != nil || next == "" ||
		slices.ContainsFunc(services, func(h domain.ComputeHost) bool {
			return strings.HasPrefix(h.Name, "compute-") && (h.IsBrief || h.VCPUs == 0)
		}) {
		t.Errorf("their hypervisors are not read: %q, %+v: %v", next, services, err)
	}
}

// TestProbeOfAnOpenHost: compute-1 takes everybody's servers, so nothing is proven, and nothing is left.
func TestProbeOfAnOpenHost(t *testing.T) {
	t.Parallel()
	admin, ctx := testkit.Session(t, "admin"), t.Context()
	got, err := admin.ProbeHost(ctx, "compute-1")
	if err != nil || got.Result != domain.IsolationUnproven || got.Detail == "" {
		t.Errorf("%+v %v", got, err)
	}
	servers, err := admin.HostServers(ctx, "compute-1")
	isProbe := func(s domain.Server) bool { return s.Name == "cloudfn-probe-compute-1" }
	if err != nil || slices.ContainsFunc(servers, isProbe) {
		t.Errorf("left: %+v %v", servers, err)
	}
}

// TestProbeOfAnIsolatedHost: the sandbox's scheduler keeps servers without the trait off hosts of isolating aggregates.
func TestProbeOfAnIsolatedHost(t *testing.T) {
	t.Parallel()
	host := testkit.ReservableHosts(t)[0]
	testkit.Isolate(t, host)
	admin, ctx := testkit.Session(t, "leases"), t.Context()
	got, err := admin.ProbeHost(ctx, host)
	if err != nil || got.Result != domain.IsolationProven {
		t.Errorf("%+v %v", got, err)
	}
	testkit.ForceDown(t, host, true)
	if got, err := admin.ComputeService(ctx, host); err != nil || !got.ForcedDown || got.IsUp {
		t.Errorf("forced down: %+v %v", got, err)
	}
	if got, err := admin.ProbeHost(ctx, host); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("of a host that is down: %+v %v", got, err)
	}
	testkit.ForceDown(t, host, false)
	if got, err := admin.ComputeService(ctx, host); err != nil || got.ForcedDown {
		t.Errorf("not any more: %+v %v", got, err)
	}
	servers, err := admin.HostServers(ctx, host)
	if err != nil || len(servers) > 0 {
		t.Errorf("left: %+v %v", servers, err)
	}
}

// TestReservableHostsTakeTheirFlavor: a flavor that requires the trait gets a project's server onto them. Its snapshot
// becomes active.
func TestReservableHostsTakeTheirFlavor(t *testing.T) {
	t.Parallel()
	hosts := testkit.ReservableHosts(t)
	p, facts := testkit.NewProject(t), testkit.Sandbox(t)
	mine, admin, ctx := p.Session(t), testkit.Session(t, "leases"), t.Context()
	f := domain.PrivateFlavor{
		ID: uuid.NewString(), BaseID: facts.FlavorID,
		ExtraSpecs: map[string]string{"trait:CUSTOM_CLOUDFN_RESERVABLE": "required"},
	}
	f.Name = "reserved-" + f.ID[:8]
	t.Cleanup(func() { _ = admin.DeleteFlavor(context.Background(), f.ID) })
	if err := errors.Join(admin.EnsureFlavor(ctx, f), admin.GrantFlavor(ctx, f.ID, p.ID)); err != nil {
		t.Fatal(err)
	}
	spec := domain.LaunchSpec{FlavorID: f.ID, ImageID: facts.ImageID, NetworkIDs: []string{facts.NetworkID}}
	id, err := mine.CreateServer(ctx, spec, "reserved", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Await(t, id, "ACTIVE")
	on := map[string]int{}
	for _, h := range hosts {
		servers, err := admin.HostServers(ctx, h)
		if err != nil {
			t.Fatal(err)
		}
		on[h] = len(servers)
	}
	if on[hosts[0]]+on[hosts[1]] != 1 {
		t.Errorf("the servers of the hosts: %v", on)
	}
	if _, err := mine.SnapshotServer(ctx, id, "of-"+id, uuid.Nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.DeleteImages(t) })
	testkit.Eventually(t, time.Minute, "the image is active", func() bool {
		found, err := mine.Images(ctx, "of-"+id)
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		return found[0].Status == "active"
	})
}

// generalHost is a host on which other tests' servers may land.
func generalHost(t *testing.T, admin *openstack.Session) domain.ComputeHost {
	t.Helper()
	host, err := admin.ComputeHost(t.Context(), "compute-1")
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// TestAggregateCallsAreRepeatable: all that run-leases does may be done a second time after a crash.
func TestAggregateCallsAreRepeatable(t *testing.T) {
	t.Parallel()
	admin, ctx := testkit.Session(t, "admin"), t.Context()
	host, name := generalHost(t, admin), fmt.Sprintf("test-%x", rand.Uint64())
	metadata := map[string]string{"test": "1"} // it keeps no server off the host
	made, err := admin.EnsureAggregate(ctx, name, metadata)
	if err != nil || made.UUID == "" {
		t.Fatal(made, err)
	}
	t.Cleanup(func() {
		if _, err := admin.Aggregate(context.Background(), made.ID); err == nil {
			t.Error("the aggregate is left")
		}
	})
	for range 2 {
		again, err := admin.EnsureAggregate(ctx, name, metadata)
		if err != nil || again.ID != made.ID || again.Metadata["test"] != "1" {
			t.Errorf("%+v %v", again, err)
		}
		if err := admin.AddHost(ctx, made, host.Name, host.ProviderID); err != nil {
			t.Error(err)
		}
	}
	now, err := admin.Aggregate(ctx, made.ID)
	if err != nil || !slices.Equal(now.Hosts, []string{host.Name}) {
		t.Errorf("%+v %v", now, err)
	}
	isolates(t, admin, made, host)
	if err := admin.DeleteAggregate(ctx, made.ID); apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("with a host in it: %v", err)
	}
	for range 2 {
		if err := admin.RemoveHost(ctx, made, host.Name, host.ProviderID); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := admin.DeleteAggregate(ctx, made.ID); err != nil {
			t.Error(err)
		}
		if err := admin.RemoveHost(ctx, made, host.Name, host.ProviderID); err != nil {
			t.Errorf("from a deleted one: %v", err)
		}
	}
	if err := admin.AddHost(ctx, made, host.Name, host.ProviderID); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("into a deleted one: %v", err)
	}
}

// isolates tests that the provider of a host in an aggregate is listed as long as it has the trait.
func isolates(t *testing.T, admin *openstack.Session, a domain.Aggregate, host domain.ComputeHost) {
	t.Helper()
	trait, list := fmt.Sprintf("CUSTOM_TEST_%X", rand.Uint64()), func(aggregate, trait string) []string {
		ids, err := admin.IsolatedProviders(t.Context(), aggregate, trait)
		if err != nil {
			t.Error(err)
		}
		return ids
	}
	if ids := list(a.UUID, trait); len(ids) > 0 {
		t.Errorf("a trait that does not exist: %v", ids)
	}
	if err := admin.EnsureTrait(t.Context(), trait); err != nil {
		t.Fatal(err)
	}
	for _, present := range []bool{true, false} {
		if err := admin.SetProviderTrait(t.Context(), host.ProviderID, trait, present); err != nil {
			t.Fatal(err)
		}
		if ids := list(a.UUID, trait); slices.Equal(ids, []string{host.ProviderID}) != present {
			t.Errorf("with the trait %t: %v", present, ids)
		}
		if ids := list(uuid.NewString(), trait); len(ids) > 0 {
			t.Errorf("in an aggregate that does not exist: %v", ids)
		}
	}
	if err := admin.DeleteTrait(t.Context(), trait); err != nil {
		t.Error(err)
	}
}

// TestTraitsOfAProvider: twenty concurrently change one provider, and none undoes another's change.
func TestTraitsOfAProvider(t *testing.T) {
	t.Parallel()
	admin, ctx := testkit.Session(t, "admin"), t.Context()
	host := generalHost(t, admin)
	names := make([]string, 4)
	for i := range names {
		names[i] = fmt.Sprintf("CUSTOM_TEST_%X", rand.Uint64())
		for range 2 {
			if err := admin.EnsureTrait(ctx, names[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	set := func(present bool) {
		var all sync.WaitGroup
		for _, name := range names {
			all.Go(func() {
				for range 2 {
					if err := admin.SetProviderTrait(ctx, host.ProviderID, name, present); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	set(true)
	now := testkit.ProviderTraits(t, host.ProviderID)
	for _, name := range append(names, "COMPUTE_NODE") {
		if !slices.Contains(now, name) {
			t.Errorf("%s is lost of %v", name, now)
		}
	}
	if err := admin.DeleteTrait(ctx, names[0]); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("a trait in use: %v", err)
	}
	set(false)
	for _, name := range append(names, names...) {
		if err := admin.DeleteTrait(ctx, name); err != nil {
			t.Error(err)
		}
	}
	absent := uuid.NewString()
	if err := admin.SetProviderTrait(ctx, absent, names[0], false); err != nil {
		t.Errorf("taken from no provider: %v", err)
	}
	if err := admin.SetProviderTrait(ctx, absent, "COMPUTE_NODE", true); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("given to no provider: %v", err)
	}
}

func TestPrivateFlavorsAreCopies(t *testing.T) {
	t.Parallel()
	admin, ctx, p := testkit.Session(t, "admin"), t.Context(), testkit.NewProject(t)
	f := domain.PrivateFlavor{
		ID: uuid.NewString(), BaseID: testkit.Sandbox(t).FlavorID,
		ExtraSpecs: map[string]string{"trait:CUSTOM_TEST": "required"},
	}
	f.Name = "copy-" + f.ID[:8]
	for range 2 {
		if err := admin.EnsureFlavor(ctx, f); err != nil {
			t.Fatal(err)
		}
	}
	mine := p.Session(t)
	has := func() bool {
		list, err := mine.Flavors(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(one domain.Flavor) bool {
			return one.ID == f.ID && one.Name == f.Name && !one.Public && one.RAMMB == 512 && one.VCPUs == 1 &&
				one.DiskGB == 1
		})
	}
	if has() {
		t.Error("it is anybody's before it is granted")
	}
	for range 2 {
		if err := admin.GrantFlavor(ctx, f.ID, p.ID); err != nil {
			t.Fatal(err)
		}
	}
	if specs, err := admin.FlavorSpecs(ctx, f.ID); !has() || err != nil || specs["trait:CUSTOM_TEST"] != "required" {
		t.Errorf("granted: %v %v", specs, err)
	}
	copied := domain.PrivateFlavor{ID: uuid.NewString(), BaseID: f.ID, Name: f.Name + "-2", ExtraSpecs: map[string]string{"a:b": "c"}}
	if err := admin.EnsureFlavor(ctx, copied); err != nil {
		t.Fatal(err)
	}
	if specs, err := admin.FlavorSpecs(ctx, copied.ID); err != nil || len(specs) != 2 {
		t.Errorf("the base's extra specs: %v %v", specs, err)
	}
	all, err := admin.PrivateFlavors(ctx)
	if n := slices.IndexFunc(all, func(one domain.PrivateFlavor) bool { return one.ID == copied.ID }); err != nil ||
		n < 0 || all[n].Name != copied.Name || len(all[n].ExtraSpecs) != 2 || all[n].ExtraSpecs["a:b"] != "c" {
		t.Errorf("the private flavors are %+v %v", all, err)
	}
	for _, id := range []string{f.ID, f.ID, copied.ID} {
		if err := admin.DeleteFlavor(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if err := admin.EnsureFlavor(ctx, copied); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("without its base: %v", err)
	}
}

// TestMayChangeAggregates checks Nova's policy, and leaves nothing: no aggregate is made or changed.
func TestMayChangeAggregates(t *testing.T) {
	t.Parallel()
	admin, ctx := testkit.Session(t, "admin"), t.Context()
	if err := admin.MayChangeAggregates(ctx); err != nil {
		t.Errorf("an admin: %v", err)
	}
	if err := testkit.Session(t, "demo").MayChangeAggregates(ctx); apperr.CodeOf(err) != apperr.Forbidden {
		t.Errorf("a member: %v", err)
	}
	all, err := admin.Aggregates(ctx)
	if err != nil || slices.ContainsFunc(all, func(a domain.Aggregate) bool { return a.Name == "cloudfn" }) {
		t.Errorf("the aggregates are %+v: %v", all, err)
	}
}

// TestUnplacedServers lists the servers that no host takes, and none that is on a host.
func TestUnplacedServers(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	id := p.Create(t, "built")
	p.Await(t, id, "ACTIVE")
	facts, flavor := testkit.Sandbox(t), p.PrivateFlavor(t)
	testkit.RequireTrait(t, flavor, "HW_CPU_X86_AVX512F") // which no host has
	failed, err := p.Session(t).CreateServer(t.Context(), domain.LaunchSpec{
		FlavorID: flavor, ImageID: facts.ImageID, NetworkIDs: []string{facts.NetworkID},
	}, "failed", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Await(t, failed, "ERROR")
	found, err := testkit.Session(t, "admin").UnplacedServers(t.Context(), p.ID)
	if err != nil || len(found) != 1 || found[0].ID != failed || found[0].Host != "" || found[0].Launched ||
		found[0].Flavor.Name == "" {
		t.Errorf("server %s is built and %s is not, but got %+v: %v", id, failed, found, err)
	}
}
