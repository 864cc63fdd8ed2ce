package testkit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/domains"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
)

// ReadsDomain makes the project's member a reader of its domain, and gives the settings by which the function connections looks names up
// with it.
func (p *Project) ReadsDomain(t testing.TB) map[string]string {
	t.Helper()
	ctx := context.Background()
	pages, err := roles.List(p.keystone, roles.ListOpts{Name: "reader"}).AllPages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	found, err := roles.ExtractRoles(pages)
	if err != nil || len(found) != 1 {
		t.Fatalf("role reader: %v %v", found, err)
	}
	if err := roles.Assign(ctx, p.keystone, found[0].ID, roles.AssignOpts{UserID: p.UserID, DomainID: p.DomainID}).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	in, err := domains.Get(ctx, p.keystone, p.DomainID).Extract()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"LOOKUP_OS_USERNAME": p.Name, "LOOKUP_OS_PASSWORD": p.password, "LOOKUP_OS_USER_DOMAIN_NAME": in.Name, "LOOKUP_OS_DOMAIN_NAME": in.Name,
	}
}

// OtherDomain makes a domain with a user of the same name as the project's member, and gives its name; at the test's end it goes.
func (p *Project) OtherDomain(t testing.TB) (name string) {
	t.Helper()
	ctx := context.Background()
	name = fmt.Sprintf("test-%x", rand.Uint64())
	made, err := domains.Create(ctx, p.keystone, domains.CreateOpts{Name: name}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		off := false
		if err := domains.Update(ctx, p.keystone, made.ID, domains.UpdateOpts{Enabled: &off}).Err; err != nil {
			t.Error(err)
		}
		if err := domains.Delete(ctx, p.keystone, made.ID).ExtractErr(); err != nil {
			t.Error(err)
		}
	})
	if _, err := users.Create(ctx, p.keystone, users.CreateOpts{Name: p.Name, DomainID: made.ID}).Extract(); err != nil {
		t.Fatal(err)
	}
	return name
}
