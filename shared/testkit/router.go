package testkit

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/external"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/quotas"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Routed is a network of a project, and the external network that a router connects it to.
type Routed struct{ NetworkID, ExternalID, ExternalName string }

// RoutedNetwork makes a network with a subnet in the project, and a router from it to the sandbox's external network.
// All of it is removed at the end of the test, with the project's servers and floating IPs.
func (p *Project) RoutedNetwork(t testing.TB, name, cidr string) Routed {
	t.Helper()
	ctx := context.Background()
	p.Network(t, name, cidr)
	neutron := must(openstack.NewNetworkV2(p.Login(t), gophercloud.EndpointOpts{}))(t)
	networkID := p.NetworkID(t, name)
	isExternal := true
	outside := all(t, networks.List(neutron, external.ListOptsExt{
		ListOptsBuilder: networks.ListOpts{Name: "public"}, External: &isExternal,
	}), networks.ExtractNetworks)[0]
	router := must(routers.Create(ctx, neutron, routers.CreateOpts{
		Name: name, GatewayInfo: &routers.GatewayInfo{NetworkID: outside.ID},
	}).Extract())(t)
	subnet := all(t, subnets.List(neutron, subnets.ListOpts{NetworkID: networkID}), subnets.ExtractSubnets)[0]
	must(routers.AddInterface(ctx, neutron, router.ID, routers.AddInterfaceOpts{SubnetID: subnet.ID}).Extract())(t)
	t.Cleanup(func() {
		p.removeServers(t, Login(t, "admin"))
		p.DeleteFloatingIPs(t)
		_, err := routers.RemoveInterface(ctx, neutron, router.ID,
			routers.RemoveInterfaceOpts{SubnetID: subnet.ID}).Extract()
		ignore(t, err, http.StatusNotFound)
		ignore(t, routers.Delete(ctx, neutron, router.ID).ExtractErr(), http.StatusNotFound)
	})
	return Routed{networkID, outside.ID, outside.Name}
}

// NetworkID finds the project's network of a name.
func (p *Project) NetworkID(t testing.TB, name string) string {
	t.Helper()
	neutron := must(openstack.NewNetworkV2(p.Login(t), gophercloud.EndpointOpts{}))(t)
	own := networks.ListOpts{Name: name, ProjectID: p.ID}
	return all(t, networks.List(neutron, own), networks.ExtractNetworks)[0].ID
}

// BootOn creates a server without cloudfn on networks, and waits until it is ACTIVE.
func (p *Project) BootOn(t testing.TB, name string, networkIDs ...string) string {
	t.Helper()
	opts := createOpts(t, name)
	var on []servers.Network
	for _, id := range networkIDs {
		on = append(on, servers.Network{UUID: id})
	}
	opts.Networks = on
	return p.boot(t, opts, 1)[0].ID
}

// FloatingIPs lists the project's floating IPs.
func (p *Project) FloatingIPs(t testing.TB) []floatingips.FloatingIP {
	t.Helper()
	neutron := must(openstack.NewNetworkV2(p.Login(t), gophercloud.EndpointOpts{}))(t)
	return all(t, floatingips.List(neutron, floatingips.ListOpts{ProjectID: p.ID}), floatingips.ExtractFloatingIPs)
}

// DeleteFloatingIPs deletes the project's floating IPs.
func (p *Project) DeleteFloatingIPs(t testing.TB) {
	t.Helper()
	neutron := must(openstack.NewNetworkV2(p.Login(t), gophercloud.EndpointOpts{}))(t)
	Eventually(t, time.Minute, "the project's floating IPs are deleted", func() bool {
		left := p.FloatingIPs(t)
		for _, f := range left {
			err := floatingips.Delete(context.Background(), neutron, f.ID).ExtractErr()
			ignore(t, err, http.StatusNotFound)
		}
		return len(left) == 0
	})
}

// AttachAddress attaches the project's floating IP of an address to a server.
func (p *Project) AttachAddress(t testing.TB, serverID, address string) error {
	t.Helper()
	_, _, err := p.Session(t).EnsureFloatingIP(t.Context(), serverID, domain.FloatingIPAttach{Address: address})
	return err
}

// SetFloatingIPQuota limits how many floating IPs the project may have.
func (p *Project) SetFloatingIPQuota(t testing.TB, count int) {
	t.Helper()
	p.changed = true
	neutron := must(openstack.NewNetworkV2(Login(t, "admin"), gophercloud.EndpointOpts{}))(t)
	must(quotas.Update(t.Context(), neutron, p.ID, quotas.UpdateOpts{FloatingIP: &count}).Extract())(t)
}
