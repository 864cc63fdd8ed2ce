package testkit

import (
	"context"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
)

// MakePort makes a port of the project in a network until the test ends, and returns its id and address.
func (p *Project) MakePort(t testing.TB, networkID string) (id, address string) {
	t.Helper()
	neutron := must(openstack.NewNetworkV2(p.Login(t), gophercloud.EndpointOpts{}))(t)
	port := must(ports.Create(t.Context(), neutron, ports.CreateOpts{NetworkID: networkID}).Extract())(t)
	t.Cleanup(func() { _ = ports.Delete(context.Background(), neutron, port.ID).ExtractErr() })
	return port.ID, port.FixedIPs[0].IPAddress
}

// MakeSecurityGroup makes a security group of the project until the test ends, with its servers, and returns its id.
func (p *Project) MakeSecurityGroup(t testing.TB, name string) (id string) {
	t.Helper()
	neutron := must(openstack.NewNetworkV2(p.Login(t), gophercloud.EndpointOpts{}))(t)
	group := must(groups.Create(t.Context(), neutron, groups.CreateOpts{Name: name}).Extract())(t)
	t.Cleanup(func() {
		p.removeServers(t, Login(t, "admin"))
		Eventually(t, time.Minute, "security group "+name+" is gone", func() bool { // it stays while a port has it
			err := groups.Delete(context.Background(), neutron, group.ID).ExtractErr()
			return err == nil || gophercloud.ResponseCodeIs(err, 404)
		})
	})
	return group.ID
}
