package testkit

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servergroups"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
