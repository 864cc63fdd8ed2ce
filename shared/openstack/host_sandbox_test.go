package openstack_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
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
		// Nova's fake driver has 1000 CPUs, and Zed's default ratios are 16, 1.5 and 1.
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

// TestReservableHostsTakeTheirFlavor: a flavor that asks for the trait gets a project's server onto them. Its snapshot
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

func TestLongShelveSnapshotAndImages(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	mine, admin, ctx := p.Session(t), testkit.Session(t, "admin"), t.Context()
	made := p.Boot(t, "kept", 1)[0]
	name := "kept-" + made.ID
	action, of := uuid.New(), domain.Server{ID: made.ID, ProjectID: p.ID}
	id, err := mine.SnapshotServer(ctx, made.ID, name, action)
	if err != nil || id == "" {
		t.Fatal(id, err)
	}
	found, err := mine.Images(ctx, name)
	if err != nil || len(found) != 1 || found[0].ID != id || found[0].Status == "" {
		t.Fatal(found, err)
	}
	if found, err := mine.ImagesOf(ctx, action, of); err != nil || len(found) != 1 || found[0].ID != id {
		t.Errorf("by its action: %v %v", found, err)
	}
	if found, err := mine.ImagesOf(ctx, uuid.New(), of); err != nil || len(found) != 0 {
		t.Errorf("another action: %v %v", found, err)
	}
	for what, server := range map[string]domain.Server{
		"another server": {ID: uuid.NewString(), ProjectID: p.ID}, "another project": {ID: made.ID, ProjectID: "other"},
	} {
		if found, err := admin.ImagesOf(ctx, action, server); err != nil || len(found) != 0 {
			t.Errorf("%s: %v %v", what, found, err)
		}
	}
	p.Quiet(t, made.ID)
	p.DeleteImages(t)
	if err := mine.ShelveServer(ctx, made.ID); err != nil {
		t.Fatal(err)
	}
	p.Await(t, made.ID, "SHELVED_OFFLOADED") // the sandbox offloads at once
	if err := admin.OffloadServer(ctx, made.ID); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("offloaded twice: %v", err)
	}
	if err := mine.ShelveServer(ctx, made.ID); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("shelved twice: %v", err)
	}
}

// TestLongEndOfServers: a server that an admin has locked is not its owner's to change; one in RESCUE or ERROR becomes
// active.
func TestLongEndOfServers(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	mine, admin, ctx := p.Session(t), testkit.Session(t, "leases"), t.Context()
	id := p.Boot(t, "locked", 1)[0].ID
	if err := admin.LockServer(ctx, id); err != nil {
		t.Fatal(err)
	}
	if found, err := admin.Server(ctx, id); err != nil || !found.Locked {
		t.Errorf("it is locked: %t, %v", found.Locked, err)
	}
	for what, err := range map[string]error{
		"stop": mine.StopServer(ctx, id), "delete": mine.DeleteServer(ctx, id), "unlock": mine.UnlockServer(ctx, id),
	} {
		if code := apperr.CodeOf(err); code != apperr.Conflict && code != apperr.Forbidden {
			t.Errorf("%s by its owner: %v", what, err)
		}
	}
	if err := errors.Join(admin.UnlockServer(ctx, id), mine.StopServer(ctx, id)); err != nil {
		t.Errorf("unlocked: %v", err)
	}
	p.Await(t, id, "SHUTOFF")
	testkit.OpenStack(t, "admin", "server", "set", "--state", "error", id)
	if err := admin.ResetServer(ctx, id); err != nil {
		t.Error(err)
	}
	p.Await(t, id, "ACTIVE")
	testkit.OpenStack(t, "admin", "server", "rescue", id)
	p.Await(t, id, "RESCUE")
	if err := admin.UnrescueServer(ctx, id); err != nil {
		t.Error(err)
	}
	p.Await(t, id, "ACTIVE")
}
