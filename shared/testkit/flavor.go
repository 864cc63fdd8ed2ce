package testkit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/quotasets"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
)

// TooLarge makes a flavor for this project alone that is larger than any host, and takes away the project's limit of memory,
// so that Nova takes servers of it and then finds no host for them. It gives the flavor's id.
func (p *Project) TooLarge(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	admin := Compute(t, Login(t, "admin"))
	private, disk, unlimited := false, 1, -1
	name := fmt.Sprintf("too-large-%x", rand.Uint64())
	huge, err := flavors.Create(ctx, admin, flavors.CreateOpts{Name: name, RAM: 1 << 30, VCPUs: 1, Disk: &disk, IsPublic: &private}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flavors.Delete(ctx, admin, huge.ID).ExtractErr() })
	if _, err := flavors.AddAccess(ctx, admin, huge.ID, flavors.AddAccessOpts{Tenant: p.ID}).Extract(); err != nil {
		t.Fatal(err)
	}
	if _, err := quotasets.Update(ctx, admin, p.ID, quotasets.UpdateOpts{RAM: &unlimited}).Extract(); err != nil {
		t.Fatal(err)
	}
	return huge.ID
}

// KeyPairs are the public halves of the member's SSH keys, by name.
func (p *Project) KeyPairs(t testing.TB) map[string]string {
	t.Helper()
	pages, err := keypairs.List(Compute(t, p.Login(t)), nil).AllPages(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found, err := keypairs.ExtractKeyPairs(pages)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for _, k := range found {
		keys[k.Name] = k.PublicKey
	}
	return keys
}

// Drop has Nova delete a server, and does not wait for it.
func (p *Project) Drop(t testing.TB, serverID string) {
	t.Helper()
	if err := servers.Delete(context.Background(), Compute(t, p.Login(t)), serverID).ExtractErr(); err != nil {
		t.Error(err)
	}
}
