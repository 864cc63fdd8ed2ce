package testkit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/quotasets"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/domains"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/rbacpolicies"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
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
		Eventually(t, time.Minute, "network "+name+" is gone", func() bool { // it stays while it has ports
			err := networks.Delete(ctx, neutron, network.ID).ExtractErr()
			return err == nil || gophercloud.ResponseCodeIs(err, 404)
		})
	})
	opts := subnets.CreateOpts{Name: name + "-subnet", NetworkID: network.ID, CIDR: cidr, IPVersion: gophercloud.IPv4}
	must(subnets.Create(ctx, neutron, opts).Extract())(t)
}
