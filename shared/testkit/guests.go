package testkit

import (
	"context"
	"os"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/imagedata"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
)

// PublicImage returns the id of the public image with a name. It uploads the file unless Glance has that image, which
// stays for the next run.
func PublicImage(t testing.TB, name, diskFormat, file string, properties map[string]string) string {
	t.Helper()
	ctx := context.Background()
	glance := must(openstack.NewImageV2(Login(t, "admin"), gophercloud.EndpointOpts{}))(t)
	list := images.List(glance, images.ListOpts{Name: name, Status: images.ImageStatusActive})
	if found := all(t, list, images.ExtractImages); len(found) > 0 {
		return found[0].ID
	}
	public := images.ImageVisibilityPublic
	made := must(images.Create(ctx, glance, images.CreateOpts{
		Name: name, DiskFormat: diskFormat, ContainerFormat: "bare", Visibility: &public, Properties: properties,
	}).Extract())(t)
	content := must(os.Open(file))(t)
	defer content.Close()
	check(t, imagedata.Upload(ctx, glance, made.ID, content).ExtractErr())
	return made.ID
}

// StaticNetwork is Network without DHCP: the config drive of a server has its address.
func (p *Project) StaticNetwork(t testing.TB, name, cidr string) {
	t.Helper()
	p.Network(t, name, cidr)
	neutron := must(openstack.NewNetworkV2(p.Login(t), gophercloud.EndpointOpts{}))(t)
	list := subnets.List(neutron, subnets.ListOpts{ProjectID: p.ID, Name: name + "-subnet"})
	dhcp := false
	for _, s := range all(t, list, subnets.ExtractSubnets) {
		must(subnets.Update(context.Background(), neutron, s.ID, subnets.UpdateOpts{EnableDHCP: &dhcp}).Extract())(t)
	}
}
