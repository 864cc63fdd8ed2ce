package testkit

import (
	"context"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
)

// Disable keeps the project's member from logging in.
func (p *Project) Disable(t testing.TB) {
	t.Helper()
	p.enable(t, false)
}

// Enable lets a member who was disabled log in again.
func (p *Project) Enable(t testing.TB) {
	t.Helper()
	p.enable(t, true)
}

func (p *Project) enable(t testing.TB, enabled bool) {
	t.Helper()
	if err := users.Update(context.Background(), p.keystone, p.UserID, users.UpdateOpts{Enabled: &enabled}).Err; err != nil {
		t.Fatal(err)
	}
}

// Leave takes every role in the project from its member.
func (p *Project) Leave(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	pages, err := roles.ListAssignmentsOnResource(p.keystone, roles.ListAssignmentsOnResourceOpts{UserID: p.UserID, ProjectID: p.ID}).AllPages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	given, err := roles.ExtractRoles(pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range given {
		if err := roles.Unassign(ctx, p.keystone, r.ID, roles.UnassignOpts{UserID: p.UserID, ProjectID: p.ID}).ExtractErr(); err != nil {
			t.Fatal(err)
		}
	}
}
