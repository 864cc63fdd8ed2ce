package testkit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/trusts"
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

// ResetPassword gives the project's member another password, as an admin does.
func (p *Project) ResetPassword(t testing.TB) {
	t.Helper()
	p.password = remember("a password", fmt.Sprintf("pw-%016x", rand.Uint64()))
	if err := users.Update(context.Background(), p.keystone, p.UserID, users.UpdateOpts{Password: p.password}).Err; err != nil {
		t.Fatal(err)
	}
}

// Close disables the project.
func (p *Project) Close(t testing.TB) {
	t.Helper()
	p.open(t, false)
}

// Reopen enables a project that was disabled.
func (p *Project) Reopen(t testing.TB) {
	t.Helper()
	p.open(t, true)
}

func (p *Project) open(t testing.TB, enabled bool) {
	t.Helper()
	if err := projects.Update(context.Background(), p.keystone, p.ID, projects.UpdateOpts{Enabled: &enabled}).Err; err != nil {
		t.Fatal(err)
	}
}

// DeleteProject deletes the project in Keystone before the test's end.
func (p *Project) DeleteProject(t testing.TB) {
	t.Helper()
	if err := projects.Delete(context.Background(), p.keystone, p.ID).ExtractErr(); err != nil {
		t.Fatal(err)
	}
}

// DeleteUser deletes the project's member in Keystone before the test's end.
func (p *Project) DeleteUser(t testing.TB) {
	t.Helper()
	if err := users.Delete(context.Background(), p.keystone, p.UserID).ExtractErr(); err != nil {
		t.Fatal(err)
	}
}

// HasTrust says whether Keystone lists a trust for an admin.
func HasTrust(t testing.TB, id string) bool {
	t.Helper()
	pages, err := trusts.List(Identity(t, Login(t, "admin")), trusts.ListOpts{}).AllPages(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found, err := trusts.ExtractTrusts(pages)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(found, func(trust trusts.Trust) bool { return trust.ID == id })
}

// DropTrust has the member take a trust back.
func (p *Project) DropTrust(t testing.TB, id string) {
	t.Helper()
	if err := trusts.Delete(context.Background(), Identity(t, p.Login(t)), id).ExtractErr(); err != nil {
		t.Fatal(err)
	}
}
