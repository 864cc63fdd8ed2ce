package testkit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	volumequotas "github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/quotasets"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumes"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumetypes"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/quotasets"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servergroups"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/volumeattach"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/domains"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/openstack/keymanager/v1/secrets"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/rbacpolicies"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TooLargeFlavor makes a flavor that no host can run, for this project only, and lifts the project's memory quota. Nova
// then accepts servers of the flavor and finds no host for them.
func (p *Project) TooLargeFlavor(t testing.TB) string {
	t.Helper()
	unlimited, disk := -1, 1
	id := p.flavor(t, flavors.CreateOpts{RAM: 1 << 30, VCPUs: 1, Disk: &disk})
	quota := quotasets.UpdateOpts{RAM: &unlimited}
	must(quotasets.Update(context.Background(), Compute(t, Login(t, "admin")), p.ID, quota).Extract())(t)
	return id
}

// DisklessFlavor makes a flavor without a disk, for this project only.
func (p *Project) DisklessFlavor(t testing.TB) string {
	t.Helper()
	disk := 0
	return p.flavor(t, flavors.CreateOpts{RAM: 64, VCPUs: 1, Disk: &disk})
}

// PrivateFlavor makes a small flavor for this project only, as those of host reservations are.
func (p *Project) PrivateFlavor(t testing.TB) string {
	t.Helper()
	p.changed = true
	disk := 1
	return p.flavor(t, flavors.CreateOpts{RAM: 96, VCPUs: 1, Disk: &disk})
}

// RequireTrait makes a flavor require a trait from now on.
func RequireTrait(t testing.TB, flavorID, trait string) {
	t.Helper()
	specs := flavors.ExtraSpecsOpts{"trait:" + trait: "required"}
	check(t, flavors.CreateExtraSpecs(context.Background(), Compute(t, Login(t, "admin")), flavorID, specs).Err)
}

func (p *Project) flavor(t testing.TB, opts flavors.CreateOpts) string {
	t.Helper()
	ctx, admin, isPublic := context.Background(), Compute(t, Login(t, "admin")), false
	opts.Name, opts.IsPublic = fmt.Sprintf("test-%x", rand.Uint64()), &isPublic
	made := must(flavors.Create(ctx, admin, opts).Extract())(t)
	t.Cleanup(func() { _ = flavors.Delete(ctx, admin, made.ID).ExtractErr() })
	must(flavors.AddAccess(ctx, admin, made.ID, flavors.AddAccessOpts{Tenant: p.ID}).Extract())(t)
	return made.ID
}

// MakeKeyPair makes a key pair of the member, until the test ends.
func (p *Project) MakeKeyPair(t testing.TB, name string) {
	t.Helper()
	nova := Compute(t, p.Login(t))
	must(keypairs.Create(t.Context(), nova, keypairs.CreateOpts{Name: name}).Extract())(t)
	t.Cleanup(func() { _ = keypairs.Delete(context.Background(), nova, name, nil).ExtractErr() })
}

// KeyPairs returns the member's public SSH keys by name.
func (p *Project) KeyPairs(t testing.TB) map[string]string {
	t.Helper()
	found := all(t, keypairs.List(Compute(t, p.Login(t)), nil), keypairs.ExtractKeyPairs)
	keys := map[string]string{}
	for _, k := range found {
		keys[k.Name] = k.PublicKey
	}
	return keys
}

// Drop deletes a server, and does not wait for it.
func (p *Project) Drop(t testing.TB, serverID string) {
	t.Helper()
	if err := servers.Delete(context.Background(), Compute(t, p.Login(t)), serverID).ExtractErr(); err != nil {
		t.Error(err)
	}
}

// OtherDomain makes a domain with a user of the member's name, and returns the domain's name and the user's id.
func (p *Project) OtherDomain(t testing.TB) (name, userID string) {
	t.Helper()
	p.changed = true
	ctx := context.Background()
	name = fmt.Sprintf("test-%x", rand.Uint64())
	made := must(domains.Create(ctx, p.keystone, domains.CreateOpts{Name: name}).Extract())(t)
	t.Cleanup(func() {
		off := false
		err := domains.Update(ctx, p.keystone, made.ID, domains.UpdateOpts{Enabled: &off}).Err
		if err := errors.Join(err, domains.Delete(ctx, p.keystone, made.ID).ExtractErr()); err != nil {
			t.Error(err)
		}
	})
	namesake := must(users.Create(ctx, p.keystone, users.CreateOpts{Name: p.Name, DomainID: made.ID}).Extract())(t)
	return name, namesake.ID
}

// ownPolicy is an RBAC policy that the target project owns, so it counts against the quota of that project.
type ownPolicy struct{ rbacpolicies.CreateOpts }

// ToRBACPolicyCreateMap implements rbacpolicies.CreateOptsBuilder.
func (o ownPolicy) ToRBACPolicyCreateMap() (map[string]any, error) {
	body, err := o.CreateOpts.ToRBACPolicyCreateMap()
	if err == nil {
		body["rbac_policy"].(map[string]any)["project_id"] = o.TargetTenant
	}
	return body, err
}

// ExternalNetwork makes an external network for the project only. isShared also shares it with the project.
func (p *Project) ExternalNetwork(t testing.TB, cidr string, isShared bool) string {
	t.Helper()
	p.changed = true
	ctx := context.Background()
	neutron := must(openstack.NewNetworkV2(Login(t, "admin"), gophercloud.EndpointOpts{}))(t)
	made := must(networks.Create(ctx, neutron, networks.CreateOpts{Name: "outside-" + p.ID}).Extract())(t)
	t.Cleanup(func() { _ = networks.Delete(ctx, neutron, made.ID).ExtractErr() })
	subnet := subnets.CreateOpts{NetworkID: made.ID, CIDR: cidr, IPVersion: gophercloud.IPv4}
	check(t, subnets.Create(ctx, neutron, subnet).Err)
	actions := []rbacpolicies.PolicyAction{rbacpolicies.ActionAccessExternal}
	if isShared {
		actions = append(actions, rbacpolicies.ActionAccessShared)
	}
	for _, action := range actions {
		opts := rbacpolicies.CreateOpts{Action: action, ObjectType: "network", TargetTenant: p.ID, ObjectID: made.ID}
		check(t, rbacpolicies.Create(ctx, neutron, ownPolicy{opts}).Err)
	}
	return made.ID
}

// SharedNetwork makes a network of another project, shared with this one, and returns its id.
func (p *Project) SharedNetwork(t testing.TB, name string) string {
	t.Helper()
	p.changed = true
	ctx := context.Background()
	neutron := must(openstack.NewNetworkV2(Login(t, "admin"), gophercloud.EndpointOpts{}))(t)
	made := must(networks.Create(ctx, neutron, networks.CreateOpts{Name: name}).Extract())(t)
	t.Cleanup(func() { check(t, networks.Delete(ctx, neutron, made.ID).ExtractErr()) })
	check(t, rbacpolicies.Create(ctx, neutron, rbacpolicies.CreateOpts{
		Action: rbacpolicies.ActionAccessShared, ObjectType: "network", TargetTenant: p.ID, ObjectID: made.ID,
	}).Err)
	return made.ID
}

// CloudsFile writes a clouds.yaml with a cloud for the member of each project, and returns its path.
func CloudsFile(t testing.TB, members map[string]*Project) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("clouds:\n")
	for name, p := range members {
		fmt.Fprintf(&text, "  %s:\n    auth: {auth_url: %q, user_id: %q, password: %q, project_id: %q}\n",
			name, p.keystone.Endpoint, p.UserID, p.password, p.ID)
	}
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	check(t, os.WriteFile(file, []byte(text.String()), 0o600))
	return file
}

// Network makes a network with a subnet in the project. It is removed at the end of the test, with the project's
// servers.
func (p *Project) Network(t testing.TB, name, cidr string) {
	t.Helper()
	p.changed = true
	ctx := context.Background()
	neutron := must(openstack.NewNetworkV2(p.Login(t), gophercloud.EndpointOpts{}))(t)
	network := must(networks.Create(ctx, neutron, networks.CreateOpts{Name: name}).Extract())(t)
	t.Cleanup(func() {
		p.removeServers(t, Login(t, "admin"))
		Eventually(t, time.Minute, "network "+name+" is deleted", func() bool { // it stays while it has ports
			err := networks.Delete(ctx, neutron, network.ID).ExtractErr()
			return err == nil || gophercloud.ResponseCodeIs(err, 404)
		})
	})
	opts := subnets.CreateOpts{Name: name + "-subnet", NetworkID: network.ID, CIDR: cidr, IPVersion: gophercloud.IPv4}
	must(subnets.Create(ctx, neutron, opts).Extract())(t)
}

// MakeImage makes an image that servers can boot from, and returns its id. It is deleted after the test.
func (p *Project) MakeImage(t testing.TB, name string, properties map[string]string) string {
	t.Helper()
	session := p.Session(t)
	t.Cleanup(func() { p.DeleteImages(t) })
	id := must(session.CreateImage(context.Background(), domain.ImageRequest{
		Name: name, DiskFormat: "raw", ContainerFormat: "bare", Properties: properties,
	}))(t)
	check(t, session.UploadImage(context.Background(), id, strings.NewReader("an image")))
	return id
}

// DeleteImages deletes the images that the project owns.
func (p *Project) DeleteImages(t testing.TB) {
	t.Helper()
	glance := must(openstack.NewImageV2(Login(t, "admin"), gophercloud.EndpointOpts{}))(t)
	for _, i := range all(t, images.List(glance, images.ListOpts{Owner: p.ID}), images.ExtractImages) {
		check(t, images.Delete(context.Background(), glance, i.ID).ExtractErr())
	}
}

// AttachVolume makes a volume in the real Cinder and attaches it to a server. After the test the project's servers and
// volumes are deleted.
func (p *Project) AttachVolume(t testing.TB, serverID string) (volumeID string) {
	t.Helper()
	p.changed = true
	ctx, client := context.Background(), p.Login(t)
	cinder := BlockStorage(t, client)
	made := must(volumes.Create(ctx, cinder, volumes.CreateOpts{Name: "data", Size: 1}, nil).Extract())(t)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	awaitVolume(t, cinder, made.ID, "available")
	check(t, volumeattach.Create(ctx, Compute(t, client), serverID, volumeattach.CreateOpts{VolumeID: made.ID}).Err)
	awaitVolume(t, cinder, made.ID, "in-use")
	return made.ID
}

func awaitVolume(t testing.TB, cinder *gophercloud.ServiceClient, id, status string) {
	t.Helper()
	Eventually(t, time.Minute, "volume "+id+" is "+status, func() bool {
		time.Sleep(200 * time.Millisecond)
		return must(volumes.Get(context.Background(), cinder, id).Extract())(t).Status == status
	})
}

// Attached returns the status of a volume in Cinder, and whether Nova shows it at a server.
func (p *Project) Attached(t testing.TB, volumeID, serverID string) (status string, isAttached bool) {
	t.Helper()
	client := p.Login(t)
	cinder := BlockStorage(t, client)
	volume := must(volumes.Get(context.Background(), cinder, volumeID).Extract())(t)
	attached := all(t, volumeattach.List(Compute(t, client), serverID), volumeattach.ExtractVolumeAttachments)
	return volume.Status, slices.ContainsFunc(attached, func(a volumeattach.VolumeAttachment) bool {
		return a.VolumeID == volumeID
	})
}

// MakeMultiattach lets several servers have a volume, in Cinder's database: no backend of the sandbox takes a volume
// whose type says so.
func MakeMultiattach(t testing.TB, volumeID string) {
	t.Helper()
	sandboxSQL(t, "cinder", "update volumes set multiattach = 1 where id = '"+volumeID+"'")
}

// VolumeTypeWithoutBackend returns the name of a volume type whose volumes no backend takes. It is deleted after the
// test.
func VolumeTypeWithoutBackend(t testing.TB) string {
	t.Helper()
	cinder := BlockStorage(t, Login(t, "admin"))
	made := must(volumetypes.Create(context.Background(), cinder, volumetypes.CreateOpts{
		Name: "nowhere-" + uuid.NewString(), ExtraSpecs: map[string]string{"volume_backend_name": "none"},
	}).Extract())(t)
	t.Cleanup(func() { _ = volumetypes.Delete(context.Background(), cinder, made.ID).ExtractErr() })
	return made.Name
}

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
		Eventually(t, time.Minute, "security group "+name+" is deleted", func() bool { // it stays while a port has it
			err := groups.Delete(context.Background(), neutron, group.ID).ExtractErr()
			return err == nil || gophercloud.ResponseCodeIs(err, 404)
		})
	})
	return group.ID
}

// MakeServerGroup makes a server group of the project until the test ends, and returns its id.
func (p *Project) MakeServerGroup(t testing.TB, name string) string {
	t.Helper()
	nova := Compute(t, p.Login(t))
	nova.Microversion = "2.15"
	group := must(servergroups.Create(t.Context(), nova, servergroups.CreateOpts{
		Name: name, Policies: []string{"soft-anti-affinity"},
	}).Extract())(t)
	t.Cleanup(func() { _ = servergroups.Delete(context.Background(), nova, group.ID).ExtractErr() })
	return group.ID
}

// ServerGroupMembers lists the servers in a server group of the project.
func (p *Project) ServerGroupMembers(t testing.TB, id string) []string {
	t.Helper()
	nova := Compute(t, p.Login(t))
	nova.Microversion = "2.15"
	return must(servergroups.Get(t.Context(), nova, id).Extract())(t).Members
}

// The services that a setting of scripts/sandbox leaves out: Cinder, Octavia and Barbican.

// BlockStorage returns a client of Cinder.
func BlockStorage(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	return must(openstack.NewBlockStorageV3(client, gophercloud.EndpointOpts{}))(t)
}

// LoadBalancers returns a client of Octavia.
func LoadBalancers(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	return must(openstack.NewLoadBalancerV2(client, gophercloud.EndpointOpts{}))(t)
}

// KeyManager returns a client of Barbican.
func KeyManager(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	return must(openstack.NewKeyManagerV1(client, gophercloud.EndpointOpts{}))(t)
}

// MakeSecret makes a secret without a payload.
func (p *Project) MakeSecret(t testing.TB, name string) {
	t.Helper()
	must(secrets.Create(t.Context(), KeyManager(t, p.Login(t)), secrets.CreateOpts{Name: name}).Extract())(t)
}

// Payload returns the payload of a secret.
func (p *Project) Payload(t testing.TB, id, contentType string) string {
	t.Helper()
	opts := secrets.GetPayloadOpts{PayloadContentType: contentType}
	return string(must(secrets.GetPayload(t.Context(), KeyManager(t, p.Login(t)), id, opts).Extract())(t))
}

// SetVolumeQuota limits how many gigabytes of volumes the project may have.
func (p *Project) SetVolumeQuota(t testing.TB, gigabytes int) {
	t.Helper()
	p.changed = true
	cinder := BlockStorage(t, Login(t, "admin"))
	opts := volumequotas.UpdateOpts{Gigabytes: &gigabytes}
	must(volumequotas.Update(t.Context(), cinder, p.ID, opts).Extract())(t)
}

// DeleteVolumes deletes the project's servers and volumes, with the volumes' snapshots, and waits until they are
// deleted.
func (p *Project) DeleteVolumes(t testing.TB) {
	t.Helper()
	p.removeServers(t, Login(t, "admin"))
	cinder := BlockStorage(t, p.Login(t))
	Eventually(t, time.Minute, "the project's volumes are deleted", func() bool {
		left := all(t, volumes.List(cinder, volumes.ListOpts{}), volumes.ExtractVolumes)
		for _, v := range left { // one that is not idle is refused, and deleted at the next look
			err := volumes.Delete(context.Background(), cinder, v.ID, volumes.DeleteOpts{Cascade: true}).ExtractErr()
			ignore(t, err, http.StatusNotFound, http.StatusBadRequest)
		}
		return len(left) == 0
	})
}

// DeleteLoadBalancers deletes the project's load balancers with all that is in them, and waits until they are deleted.
func (p *Project) DeleteLoadBalancers(t testing.TB) {
	t.Helper()
	octavia := LoadBalancers(t, p.Login(t))
	Eventually(t, time.Minute, "the project's load balancers are deleted", func() bool {
		list := loadbalancers.List(octavia, loadbalancers.ListOpts{ProjectID: p.ID})
		left := all(t, list, loadbalancers.ExtractLoadBalancers)
		for _, b := range left {
			opts := loadbalancers.DeleteOpts{Cascade: true}
			err := loadbalancers.Delete(context.Background(), octavia, b.ID, opts).ExtractErr()
			ignore(t, err, http.StatusNotFound, http.StatusConflict)
		}
		return len(left) == 0
	})
}

// ignore fails the test for any error but an answer with one of the statuses.
func ignore(t testing.TB, err error, statuses ...int) {
	t.Helper()
	for _, status := range statuses {
		if gophercloud.ResponseCodeIs(err, status) {
			return
		}
	}
	check(t, err)
}
