package testkit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/domains"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
)

// OtherDomain makes a domain with a user of the same name as the project's member, and gives its name and that user's id; at the test's end it goes.
func (p *Project) OtherDomain(t testing.TB) (name, userID string) {
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
	namesake, err := users.Create(ctx, p.keystone, users.CreateOpts{Name: p.Name, DomainID: made.ID}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	return name, namesake.ID
}
