package testkit

import (
	"context"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
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
