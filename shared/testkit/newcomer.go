package testkit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
)

// CloudsFile writes a clouds.yaml in which each project's member is a cloud by the name given, and gives its path.
func CloudsFile(t testing.TB, members map[string]*Project) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("clouds:\n")
	for name, p := range members {
		fmt.Fprintf(&text, "  %s:\n    auth: {auth_url: %q, user_id: %q, password: %q, project_id: %q}\n",
			name, p.keystone.Endpoint, p.UserID, p.password, p.ID)
	}
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Network makes a network with a subnet in the project. It goes at the test's end, with the project's servers.
func (p *Project) Network(t testing.TB, name, cidr string) {
	t.Helper()
	ctx := context.Background()
	neutron, err := openstack.NewNetworkV2(p.Login(t), gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	network, err := networks.Create(ctx, neutron, networks.CreateOpts{Name: name}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.removeServers(t, Login(t, "admin"))
		Eventually(t, time.Minute, "network "+name+" is gone", func() bool { // not while a port is left
			err := networks.Delete(ctx, neutron, network.ID).ExtractErr()
			return err == nil || gophercloud.ResponseCodeIs(err, 404)
		})
	})
	opts := subnets.CreateOpts{Name: name + "-subnet", NetworkID: network.ID, CIDR: cidr, IPVersion: gophercloud.IPv4}
	if _, err := subnets.Create(ctx, neutron, opts).Extract(); err != nil {
		t.Fatal(err)
	}
}
