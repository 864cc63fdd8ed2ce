package testkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/instanceactions"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/quotasets"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servergroups"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/tags"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"

	"github.com/cloudfn/cloudfn/shared/domain"
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
	Eventually(t, time.Minute, "the creation of "+serverID+" has ended", func() bool {
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

// actions are the bodies of Nova's server actions.
var actions = map[string]any{
	"start": object{"os-start": nil}, "stop": object{"os-stop": nil}, "shelve": object{"shelve": nil},
	"unshelve": object{"unshelve": nil}, "snapshot": object{"createImage": object{"name": "snapshot"}},
	"pause": object{"pause": nil}, "unpause": object{"unpause": nil}, "suspend": object{"suspend": nil},
	"resume": object{"resume": nil}, "lock": object{"lock": nil},
	"unlock": object{"unlock": nil},
	"rescue": object{"rescue": object{}}, "break": object{"os-resetState": object{"state": "error"}},
	"reboot": object{"reboot": object{"type": "SOFT"}}, "hard": object{"reboot": object{"type": "HARD"}},
}

type object map[string]any

// Act sends an action to Nova as the member, or "break" (put the server into ERROR) as an admin, and returns the status
// of the answer: 202 for every success.
func (p *Project) Act(t testing.TB, serverID, action string) int {
	t.Helper()
	client := p.Login(t)
	if action == "break" {
		client = Login(t, "admin")
	}
	nova, body := Compute(t, client), actions[action]
	if action == "resize" {
		body = object{"resize": object{"flavorRef": largerFlavor(t, nova)}}
	}
	_, err := nova.Post(context.Background(), nova.ServiceURL("servers", serverID, "action"), body, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusAccepted}})
	if rejected, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return rejected.Actual
	}
	check(t, err)
	return http.StatusAccepted
}

// largerFlavor returns the smallest flavor with more memory than the smallest of all.
func largerFlavor(t testing.TB, nova *gophercloud.ServiceClient) string {
	t.Helper()
	list := flavors.ListDetail(nova, flavors.ListOpts{SortKey: "memory_mb", SortDir: "asc"})
	found := all(t, list, flavors.ExtractFlavors)
	for _, f := range found {
		if f.RAM > found[0].RAM {
			return f.ID
		}
	}
	t.Fatal("all flavors have the same memory")
	return ""
}

// createOpts returns the request for servers of the smallest flavor.
func createOpts(t testing.TB, name string) servers.CreateOpts {
	t.Helper()
	f := Sandbox(t)
	return servers.CreateOpts{Name: name, FlavorRef: f.FlavorID, ImageRef: f.ImageID, Networks: "none"}
}

// withoutNetwork is Nova's first version of networks "none". A port is half of what a server costs the sandbox.
const withoutNetwork = "2.37"

// Create creates a server without a network, and does not wait for it.
func (p *Project) Create(t testing.TB, name string, tags ...string) (id string) {
	t.Helper()
	opts, nova := createOpts(t, name), Compute(t, p.Login(t))
	opts.Tags, nova.Microversion = tags, withoutNetwork
	if len(tags) > 0 {
		nova.Microversion = "2.52"
	}
	return must(servers.Create(context.Background(), nova, opts, nil).Extract())(t).ID
}

// Tags returns the tags of a server.
func (p *Project) Tags(t testing.TB, serverID string) []string {
	t.Helper()
	nova := Compute(t, p.Login(t))
	nova.Microversion = "2.26"
	return must(tags.List(context.Background(), nova, serverID).Extract())(t)
}

// SetMetadata sets items of a server's metadata.
func (p *Project) SetMetadata(t testing.TB, serverID string, items map[string]string) {
	t.Helper()
	_, err := servers.UpdateMetadata(context.Background(), Compute(t, p.Login(t)), serverID,
		servers.MetadataOpts(items)).Extract()
	check(t, err)
}

// Tag adds a tag to a server.
func (p *Project) Tag(t testing.TB, serverID, tag string) {
	t.Helper()
	nova := Compute(t, p.Login(t))
	nova.Microversion = "2.26"
	check(t, tags.Add(context.Background(), nova, serverID, tag).ExtractErr())
}

// ServersOn makes servers of the project on a host of ReservableHosts, without a network, and waits until they are
// ACTIVE. They can move to another one of these hosts. The project's member becomes an admin for it.
func (p *Project) ServersOn(t testing.TB, host, name string, count int) (servers []domain.Server) {
	t.Helper()
	p.requestServers(t, host, name, count)
	ctx, session := context.Background(), Session(t, "admin")
	Eventually(t, 5*time.Minute, "the servers are on "+host, func() bool {
		time.Sleep(time.Second)
		servers = nil
		for _, s := range must(session.HostServers(ctx, host))(t) {
			if s.ProjectID == p.ID && s.Status == "ACTIVE" {
				servers = append(servers, s)
			}
		}
		return len(servers) == count
	})
	return servers
}

// requestServers has Nova make servers of the project on a host of ReservableHosts.
func (p *Project) requestServers(t testing.TB, host, name string, count int) {
	t.Helper()
	ctx, disk := context.Background(), 0
	flavor := p.flavor(t, flavors.CreateOpts{RAM: 64, VCPUs: 1, Disk: &disk})
	must(flavors.CreateExtraSpecs(ctx, Compute(t, Login(t, "admin")), flavor, flavors.ExtraSpecsOpts{
		"trait:" + spareTrait: "required",
	}).Extract())(t)
	p.Grant(t, p.UserID, "admin")
	nova := Compute(t, p.Login(t))
	nova.Microversion = "2.74" // it names a host
	made := map[string]any{
		"name": name, "flavorRef": flavor, "imageRef": Sandbox(t).ImageID, "networks": "none", "host": host,
		"min_count": count, "max_count": count,
	}
	_, err := nova.Post(ctx, nova.ServiceURL("servers"), map[string]any{"server": made}, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusAccepted}})
	check(t, err)
}

// Act has an admin do an action on a server, in the form of Nova's API.
func Act(t testing.TB, serverID string, action map[string]any) {
	t.Helper()
	nova := Compute(t, Login(t, "admin"))
	_, err := nova.Post(context.Background(), nova.ServiceURL("servers", serverID, "action"), action, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusAccepted}})
	check(t, err)
}

// ServerGroups lists the project's server groups.
func (p *Project) ServerGroups(t testing.TB) []servergroups.ServerGroup {
	t.Helper()
	nova := Compute(t, p.Login(t))
	nova.Microversion = "2.15" // the first with soft policies
	return all(t, servergroups.List(nova, nil), servergroups.ExtractServerGroups)
}
