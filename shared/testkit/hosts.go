package testkit

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/services"
	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/resourceproviders"
	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/traits"

	"github.com/cloudfn/cloudfn/shared/domain"
	shared "github.com/cloudfn/cloudfn/shared/openstack"
)

const (
	spareTrait = "CUSTOM_CLOUDFN_RESERVABLE" // servers that require it get onto the hosts of ReservableHosts
	poolTrait  = "CUSTOM_CLOUDFN_POOL_"
	leaseTrait = "CUSTOM_CLOUDFN_LEASE_"
)

// ReservableHosts waits until no other test has them, in any process, and returns the sandbox's hosts that no ordinary
// server gets onto: up, without servers and in no aggregate. Before the test and after it everything is removed that
// cloudfn makes. A test that calls Heavy does so first.
func ReservableHosts(t testing.TB) []string {
	t.Helper()
	name := filepath.Join(filepath.Dir(CloudsYAML(t)), "reservable-hosts.lock")
	file := must(os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600))(t)
	t.Cleanup(func() { file.Close() }) // this releases the lock
	start := time.Now()
	check(t, syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	t.Logf("waited %.1f s for its turn", time.Since(start).Seconds())
	names := reservable(t)
	pool := pool{nova: Compute(t, Login(t, "admin")), session: Session(t, "admin"), names: names}
	pool.restore(t)
	t.Cleanup(func() { pool.restore(t) })
	pool.awaitUp(t)
	return slices.Clone(names)
}

// reservable reads which hosts the sandbox was made with.
func reservable(t testing.TB) []string {
	t.Helper()
	names := strings.Fields(SandboxSetting(t, "RESERVABLE"))
	if len(names) == 0 {
		t.Fatal("the sandbox is older than its reservable hosts: run scripts/sandbox up")
	}
	return names
}

type pool struct {
	nova    *gophercloud.ServiceClient
	session *shared.Session
	names   []string
}

// restore makes the hosts as scripts/sandbox makes them. It is also a cleanup, so it uses no context of the test.
func (p pool) restore(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	p.services(t)
	hosts := map[string]domain.ComputeHost{}
	for _, h := range must(p.session.ComputeHosts(ctx))(t) {
		hosts[h.Name] = h
	}
	for _, name := range p.names {
		p.empty(ctx, t, name)
	}
	p.flavors(ctx, t)
	for _, a := range must(p.session.Aggregates(ctx))(t) {
		isOurs := strings.HasPrefix(a.Name, "cloudfn-")
		for _, name := range a.Hosts {
			if isOurs || slices.Contains(p.names, name) {
				check(t, p.session.RemoveHost(ctx, a, name, hosts[name].ProviderID))
			}
		}
		if isOurs {
			check(t, p.session.DeleteAggregate(ctx, a.ID))
		}
	}
	check(t, p.session.EnsureTrait(ctx, spareTrait))
	for _, name := range p.names {
		id := hosts[name].ProviderID
		check(t, p.session.SetProviderTrait(ctx, id, spareTrait, true))
		for _, trait := range ProviderTraits(t, id) {
			if strings.HasPrefix(trait, "CUSTOM_") && trait != spareTrait {
				check(t, p.session.SetProviderTrait(ctx, id, trait, false))
			}
		}
	}
	p.traits(ctx, t)
}

// awaitUp waits for hosts that report late, as they do on a busy machine.
func (p pool) awaitUp(t testing.TB) {
	t.Helper()
	Eventually(t, 2*time.Minute, "the reservable hosts have reported", func() bool {
		up := 0
		list := services.List(p.nova, services.ListOpts{Binary: "nova-compute"})
		for _, s := range all(t, list, services.ExtractServices) {
			if s.State == "up" && slices.Contains(p.names, s.Host) {
				up++
			}
		}
		return up == len(p.names)
	})
}

// Isolate puts a host of ReservableHosts into an aggregate that isolates it, until undo or the end of the test. It
// waits until the host has no servers, and until none can get onto it that was being scheduled.
func Isolate(t testing.TB, host string) (undo func()) {
	t.Helper()
	ctx, admin := context.Background(), Session(t, "admin")
	id := must(admin.ComputeHost(ctx, host))(t).ProviderID
	made := must(admin.EnsureAggregate(ctx, "cloudfn-test", map[string]string{"trait:" + spareTrait: "required"}))(t)
	check(t, admin.AddHost(ctx, made, host, id))
	awaitScheduled(t)
	Eventually(t, 2*time.Minute, "the isolated host "+host+" is empty", func() bool {
		return len(must(admin.HostServers(ctx, host))(t)) == 0
	})
	return func() { check(t, admin.RemoveHost(ctx, made, host, id)) }
}

// awaitScheduled waits for all servers that are without their host now: Placement may have listed an isolated host for
// them before it was isolated.
func awaitScheduled(t testing.TB) {
	t.Helper()
	ctx, nova := context.Background(), Compute(t, Login(t, "admin"))
	moving := []string{"scheduling", "resize_prep", "resize_migrating", "resize_migrated", "migrating", "unshelving"}
	isScheduled := func(s servers.Server) bool {
		return s.Status == "BUILD" && s.Host == "" || slices.Contains(moving, s.TaskState)
	}
	for _, s := range all(t, servers.List(nova, servers.ListOpts{AllTenants: true}), servers.ExtractServers) {
		if !isScheduled(s) {
			continue
		}
		Eventually(t, 2*time.Minute, "server "+s.ID+" is on a host", func() bool {
			now, err := servers.Get(ctx, nova, s.ID).Extract()
			if gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
				return true
			}
			check(t, err)
			return !isScheduled(*now)
		})
	}
}

// services enables the hosts, and takes back that one was forced down.
func (p pool) services(t testing.TB) {
	t.Helper()
	for _, name := range p.names {
		setService(t, p.nova, name, false)
	}
}

// ForceDown tells Nova that a host is down, or that it is not. ReservableHosts takes it back after the test.
func ForceDown(t testing.TB, host string, down bool) {
	t.Helper()
	setService(t, Compute(t, Login(t, "admin")), host, down)
}

func setService(t testing.TB, client *gophercloud.ServiceClient, host string, down bool) {
	t.Helper()
	nova := *client
	nova.Microversion = "2.53" // services have ids for PUT
	list := services.List(&nova, services.ListOpts{Binary: "nova-compute", Host: host})
	for _, s := range all(t, list, services.ExtractServices) {
		if s.Status != "enabled" || s.ForcedDown != down { // gophercloud cannot say forced_down false
			body := map[string]any{"status": "enabled", "forced_down": down}
			_, err := nova.Put(context.Background(), nova.ServiceURL("os-services", s.ID), body, nil,
				&gophercloud.RequestOpts{OkCodes: []int{200}})
			check(t, err)
		}
	}
}

// empty deletes the servers on a host.
func (p pool) empty(ctx context.Context, t testing.TB, host string) {
	t.Helper()
	Eventually(t, 2*time.Minute, "host "+host+" is empty", func() bool {
		found := must(p.session.HostServers(ctx, host))(t)
		for _, s := range found {
			if servers.ForceDelete(ctx, p.nova, s.ID).ExtractErr() != nil {
				_ = servers.Delete(ctx, p.nova, s.ID).ExtractErr()
			}
		}
		return len(found) == 0
	})
}

// flavors deletes the private flavors of leases.
func (p pool) flavors(ctx context.Context, t testing.TB) {
	t.Helper()
	nova := *p.nova
	nova.Microversion = "2.61" // with extra specs
	list := flavors.ListDetail(&nova, flavors.ListOpts{AccessType: flavors.PrivateAccess})
	for _, f := range all(t, list, flavors.ExtractFlavors) {
		for spec := range f.ExtraSpecs {
			if strings.HasPrefix(spec, "trait:"+leaseTrait) {
				check(t, p.session.DeleteFlavor(ctx, f.ID))
				break
			}
		}
	}
}

// traits deletes the traits that cloudfn makes.
func (p pool) traits(ctx context.Context, t testing.TB) {
	t.Helper()
	for _, prefix := range []string{leaseTrait, poolTrait} {
		list := traits.List(placement(t), traits.ListOpts{Name: "startswith:" + prefix})
		for _, trait := range all(t, list, traits.ExtractTraits) {
			check(t, p.session.DeleteTrait(ctx, trait))
		}
	}
}

func placement(t testing.TB) *gophercloud.ServiceClient {
	t.Helper()
	client := must(openstack.NewPlacementV1(Login(t, "admin"), gophercloud.EndpointOpts{}))(t)
	client.Microversion = "1.6" // traits
	return client
}

// ProviderTraits lists the traits of a resource provider in Placement.
func ProviderTraits(t testing.TB, id string) []string {
	t.Helper()
	return must(resourceproviders.GetTraits(context.Background(), placement(t), id).Extract())(t).Traits
}
