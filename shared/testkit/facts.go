package testkit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/instanceactions"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/quotasets"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
)

// Facts are the resources that every project of the sandbox can use. They are found by their properties: the names are
// configurable.
type Facts struct {
	FlavorID, Flavor   string // the smallest public flavor
	ImageID, Image     string // an active public image
	RetiredID, Retired string // a deactivated public image
	CommunityID        string // a community image
	NetworkID, Network string // the shared network, with IPv4 and IPv6
}

var facts struct {
	sync.Mutex
	known *Facts
}

// Sandbox returns the facts, which it reads once per test process.
func Sandbox(t testing.TB) Facts {
	t.Helper()
	facts.Lock()
	defer facts.Unlock()
	if facts.known == nil {
		admin := Login(t, "admin")
		found := &Facts{}
		found.flavors(t, admin)
		found.images(t, admin)
		found.network(t, admin)
		facts.known = found
	}
	return *facts.known
}

func (f *Facts) flavors(t testing.TB, admin *gophercloud.ProviderClient) {
	t.Helper()
	list := flavors.ListDetail(Compute(t, admin), flavors.ListOpts{AccessType: flavors.PublicAccess})
	found := all(t, list, flavors.ExtractFlavors)
	if len(found) == 0 {
		t.Fatal("the sandbox has no public flavor")
	}
	slices.SortFunc(found, func(a, b flavors.Flavor) int { return cmp.Compare(a.RAM, b.RAM) })
	f.FlavorID, f.Flavor = found[0].ID, found[0].Name
}

func (f *Facts) images(t testing.TB, admin *gophercloud.ProviderClient) {
	t.Helper()
	glance := must(openstack.NewImageV2(admin, gophercloud.EndpointOpts{}))(t)
	for _, visibility := range []images.ImageVisibility{images.ImageVisibilityPublic, images.ImageVisibilityCommunity} {
		found := all(t, images.List(glance, images.ListOpts{Visibility: visibility}), images.ExtractImages)
		for _, i := range found {
			switch {
			case visibility == images.ImageVisibilityCommunity:
				f.CommunityID = i.ID
			case i.Status == images.ImageStatusActive:
				f.ImageID, f.Image = i.ID, i.Name
			case i.Status == images.ImageStatusDeactivated:
				f.RetiredID, f.Retired = i.ID, i.Name
			}
		}
	}
}

func (f *Facts) network(t testing.TB, admin *gophercloud.ProviderClient) {
	t.Helper()
	neutron := must(openstack.NewNetworkV2(admin, gophercloud.EndpointOpts{}))(t)
	shared := true
	found := all(t, networks.List(neutron, networks.ListOpts{Shared: &shared}), networks.ExtractNetworks)
	if len(found) == 0 {
		t.Fatal("the sandbox has no shared network")
	}
	f.NetworkID, f.Network = found[0].ID, found[0].Name
}

// Server is a server as Nova shows it.
type Server = servers.Server

// Boot creates n servers without cloudfn and without a network, and waits until they are ACTIVE.
func (p *Project) Boot(t testing.TB, name string, n int) []servers.Server {
	t.Helper()
	return p.boot(t, createOpts(t, name), n)
}

// BootWithAddress is Boot, on the shared network.
func (p *Project) BootWithAddress(t testing.TB, name string, n int) []servers.Server {
	t.Helper()
	opts := createOpts(t, name)
	opts.Networks = []servers.Network{{UUID: Sandbox(t).NetworkID}}
	return p.boot(t, opts, n)
}

func (p *Project) boot(t testing.TB, opts servers.CreateOpts, n int) []servers.Server {
	t.Helper()
	ctx, nova := context.Background(), Compute(t, p.Login(t))
	opts.Min, opts.Max = n, n
	before := map[string]bool{}
	for _, s := range list(t, nova) {
		before[s.ID] = true
	}
	nova.Microversion = withoutNetwork
	must(servers.Create(ctx, nova, opts, nil).Extract())(t)
	var made []servers.Server
	Eventually(t, 5*time.Minute, fmt.Sprintf("%d servers %q are ACTIVE", n, opts.Name), func() bool {
		time.Sleep(time.Second) // each list slows the cloud that builds them
		made = slices.DeleteFunc(list(t, nova), func(s servers.Server) bool { return before[s.ID] })
		for _, s := range made {
			if s.Status == "ERROR" {
				t.Fatalf("Nova could not build server %s: %s", s.ID, s.Fault.Message)
			}
		}
		made = slices.DeleteFunc(made, func(s servers.Server) bool { return s.Status != "ACTIVE" })
		return len(made) == n
	})
	return made
}

// Await waits until Nova shows a server in the status.
func (p *Project) Await(t testing.TB, serverID, status string) {
	t.Helper()
	if serverID == "" {
		t.Fatalf("no server to become %s", status)
	}
	nova := Compute(t, p.Login(t))
	Eventually(t, 4*time.Minute, "server "+serverID+" is "+status, func() bool {
		time.Sleep(200 * time.Millisecond) // each request costs Nova and Neutron 0.1 s of processor time
		s, err := servers.Get(context.Background(), nova, serverID).Extract()
		if gophercloud.ResponseCodeIs(err, 404) {
			return status == "DELETED"
		}
		return err == nil && s.Status == status
	})
}

// Quiet waits until Nova has written everything about a server's creation. It writes some after ACTIVE; without a
// database at that time the server would become ERROR.
func (p *Project) Quiet(t testing.TB, serverID string) {
	t.Helper()
	nova := Compute(t, Login(t, "admin"))
	Eventually(t, time.Minute, "the creation of "+serverID+" is over", func() bool {
		actions := all(t, instanceactions.List(nova, serverID, nil), instanceactions.ExtractInstanceActions)
		for _, a := range actions {
			one := must(instanceactions.Get(context.Background(), nova, serverID, a.RequestID).Extract())(t)
			for _, e := range *one.Events {
				if e.Result == "" {
					return false
				}
			}
		}
		return true
	})
}

// SetQuota limits the number of the project's servers.
func (p *Project) SetQuota(t testing.TB, instances int) {
	t.Helper()
	p.changed = true
	nova := Compute(t, Login(t, "admin"))
	must(quotasets.Update(context.Background(), nova, p.ID, quotasets.UpdateOpts{Instances: &instances}).Extract())(t)
}

// Fail creates a server that no host can run, and waits until it is ERROR.
func (p *Project) Fail(t testing.TB, name string) {
	t.Helper()
	ctx := context.Background()
	opts := createOpts(t, name)
	opts.FlavorRef = p.TooLargeFlavor(t)
	nova := Compute(t, p.Login(t))
	nova.Microversion = withoutNetwork
	made := must(servers.Create(ctx, nova, opts, nil).Extract())(t)
	p.Await(t, made.ID, "ERROR")
}
