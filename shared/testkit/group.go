package testkit

import (
	"context"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servergroups"
)

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
