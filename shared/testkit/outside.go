package testkit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/rbacpolicies"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
)

// ZeroDisk makes a flavor without a disk for the project alone.
func (p *Project) ZeroDisk(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	admin := Compute(t, Login(t, "admin"))
	isPublic, disk := false, 0
	opts := flavors.CreateOpts{Name: fmt.Sprintf("zero-disk-%x", rand.Uint64()), RAM: 64, VCPUs: 1, Disk: &disk, IsPublic: &isPublic}
	made, err := flavors.Create(ctx, admin, opts).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flavors.Delete(ctx, admin, made.ID).ExtractErr() })
	if _, err := flavors.AddAccess(ctx, admin, made.ID, flavors.AddAccessOpts{Tenant: p.ID}).Extract(); err != nil {
		t.Fatal(err)
	}
	return made.ID
}

// ownPolicy counts against the quota of the project that it is for.
type ownPolicy struct{ rbacpolicies.CreateOpts }

// ToRBACPolicyCreateMap is what gophercloud sends.
func (o ownPolicy) ToRBACPolicyCreateMap() (map[string]any, error) {
	body, err := o.CreateOpts.ToRBACPolicyCreateMap()
	if err == nil {
		body["rbac_policy"].(map[string]any)["project_id"] = o.TargetTenant
	}
	return body, err
}

// Outside makes a network that is external, and shared if asked for, for the project alone.
func (p *Project) Outside(t testing.TB, cidr string, isShared bool) string {
	t.Helper()
	ctx := context.Background()
	neutron, err := openstack.NewNetworkV2(Login(t, "admin"), gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := networks.Create(ctx, neutron, networks.CreateOpts{Name: "outside-" + p.ID}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = networks.Delete(ctx, neutron, made.ID).ExtractErr() })
	if err := subnets.Create(ctx, neutron, subnets.CreateOpts{NetworkID: made.ID, CIDR: cidr, IPVersion: gophercloud.IPv4}).Err; err != nil {
		t.Fatal(err)
	}
	actions := []rbacpolicies.PolicyAction{rbacpolicies.ActionAccessExternal}
	if isShared {
		actions = append(actions, rbacpolicies.ActionAccessShared)
	}
	for _, action := range actions {
		opts := ownPolicy{rbacpolicies.CreateOpts{Action: action, ObjectType: "network", TargetTenant: p.ID, ObjectID: made.ID}}
		if err := rbacpolicies.Create(ctx, neutron, opts).Err; err != nil {
			t.Fatal(err)
		}
	}
	return made.ID
}
