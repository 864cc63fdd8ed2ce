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

// Facts are what every project of the sandbox can launch with: found by what they are, because every name in
// the sandbox can be set.
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

// Sandbox finds the facts, once per test process.
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
	pages, err := flavors.ListDetail(Compute(t, admin), flavors.ListOpts{AccessType: flavors.PublicAccess}).AllPages(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found, err := flavors.ExtractFlavors(pages)
	if err != nil || len(found) == 0 {
		t.Fatalf("the sandbox has no public flavor: %v", err)
	}
	slices.SortFunc(found, func(a, b flavors.Flavor) int { return cmp.Compare(a.RAM, b.RAM) })
	f.FlavorID, f.Flavor = found[0].ID, found[0].Name
}

func (f *Facts) images(t testing.TB, admin *gophercloud.ProviderClient) {
	t.Helper()
	glance, err := openstack.NewImageV2(admin, gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	for _, visibility := range []images.ImageVisibility{images.ImageVisibilityPublic, images.ImageVisibilityCommunity} {
		pages, err := images.List(glance, images.ListOpts{Visibility: visibility}).AllPages(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		found, err := images.ExtractImages(pages)
		if err != nil {
			t.Fatal(err)
		}
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
	neutron, err := openstack.NewNetworkV2(admin, gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	shared := true
	pages, err := networks.List(neutron, networks.ListOpts{Shared: &shared}).AllPages(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found, err := networks.ExtractNetworks(pages)
	if err != nil || len(found) == 0 {
		t.Fatalf("the sandbox has no shared network: %v", err)
	}
	f.NetworkID, f.Network = found[0].ID, found[0].Name
}

// Server is a server as Nova itself shows it.
type Server = servers.Server

// Boot makes n servers by Nova itself, as any other client does, and waits until they are ACTIVE.
func (p *Project) Boot(t testing.TB, name string, n int) []servers.Server {
	t.Helper()
	ctx := context.Background()
	f := Sandbox(t)
	nova := Compute(t, p.Login(t))
	opts := servers.CreateOpts{
		Name: name, FlavorRef: f.FlavorID, ImageRef: f.ImageID, Networks: []servers.Network{{UUID: f.NetworkID}}, Min: n, Max: n,
	}
	before := map[string]bool{}
	for _, s := range list(t, nova) {
		before[s.ID] = true
	}
	if _, err := servers.Create(ctx, nova, opts, nil).Extract(); err != nil {
		t.Fatal(err)
	}
	var made []servers.Server
	Eventually(t, 5*time.Minute, fmt.Sprintf("%d servers %q are ACTIVE", n, name), func() bool {
		time.Sleep(time.Second) // each look costs the cloud that is to make them
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
		t.Fatalf("there is no server that could become %s", status)
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

// Quiet waits until Nova has written all there is to write of a server's creation: some of it comes after ACTIVE, and a
// database that is taken away meanwhile would put the server into ERROR.
func (p *Project) Quiet(t testing.TB, serverID string) {
	t.Helper()
	nova := Compute(t, Login(t, "admin"))
	Eventually(t, time.Minute, "the creation of "+serverID+" is over", func() bool {
		all, err := instanceactions.List(nova, serverID, nil).AllPages(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		actions, err := instanceactions.ExtractInstanceActions(all)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range actions {
			one, err := instanceactions.Get(context.Background(), nova, serverID, a.RequestID).Extract()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range *one.Events {
				if e.Result == "" {
					return false
				}
			}
		}
		return true
	})
}

// SetQuota limits how many servers the project may have.
func (p *Project) SetQuota(t testing.TB, instances int) {
	t.Helper()
	nova := Compute(t, Login(t, "admin"))
	_, err := quotasets.Update(context.Background(), nova, p.ID, quotasets.UpdateOpts{Instances: &instances}).Extract()
	if err != nil {
		t.Fatal(err)
	}
}

// LiftQuota lets the project have any number of servers.
func (p *Project) LiftQuota(t testing.TB) {
	t.Helper()
	all := -1
	nova := Compute(t, Login(t, "admin"))
	_, err := quotasets.Update(context.Background(), nova, p.ID, quotasets.UpdateOpts{Instances: &all, Cores: &all, RAM: &all}).Extract()
	if err != nil {
		t.Fatal(err)
	}
}

// Fail makes a server that never reaches a host: it is ERROR from its birth.
func (p *Project) Fail(t testing.TB, name string) {
	t.Helper()
	ctx := context.Background()
	f := Sandbox(t)
	opts := servers.CreateOpts{Name: name, FlavorRef: p.TooLarge(t), ImageRef: f.ImageID, Networks: []servers.Network{{UUID: f.NetworkID}}}
	made, err := servers.Create(ctx, Compute(t, p.Login(t)), opts, nil).Extract()
	if err != nil {
		t.Fatal(err)
	}
	p.Await(t, made.ID, "ERROR")
}
