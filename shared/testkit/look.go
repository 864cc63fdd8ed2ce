package testkit

import (
	"context"
	"encoding/base64"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
)

// Identity is Keystone through a client.
func Identity(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	keystone, err := openstack.NewIdentityV3(client, gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	return keystone
}

// UserData is a server's user_data as Nova keeps it, decoded; only an admin is shown it.
func UserData(t testing.TB, serverID string) string {
	t.Helper()
	nova := Compute(t, Login(t, "admin"))
	nova.Microversion = "2.3"
	var body struct {
		Server struct {
			UserData string `json:"OS-EXT-SRV-ATTR:user_data"`
		} `json:"server"`
	}
	if err := servers.Get(context.Background(), nova, serverID).Result.ExtractInto(&body); err != nil {
		t.Fatal(err)
	}
	data, err := base64.StdEncoding.DecodeString(body.Server.UserData)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Ports counts the ports that a server has in Neutron, or had and left behind.
func Ports(t testing.TB, serverID string) int {
	t.Helper()
	return countPorts(t, ports.ListOpts{DeviceID: serverID})
}

// Ports counts the ports in the project.
func (p *Project) Ports(t testing.TB) int {
	t.Helper()
	return countPorts(t, ports.ListOpts{ProjectID: p.ID})
}

func countPorts(t testing.TB, which ports.ListOpts) int {
	t.Helper()
	neutron, err := openstack.NewNetworkV2(Login(t, "admin"), gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := ports.List(neutron, which).AllPages(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found, err := ports.ExtractPorts(pages)
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}
