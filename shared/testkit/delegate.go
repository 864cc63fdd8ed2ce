package testkit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/applicationcredentials"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/trusts"
)

// AccessRule is one kind of call that an application credential is good for.
type AccessRule = applicationcredentials.AccessRule

// AppCredential makes an application credential of the project's member, with the member's roles, and gives its id and secret. With
// rules it is good for the calls that they name, and no other.
func (p *Project) AppCredential(t testing.TB, rules ...AccessRule) (id, secret string) {
	t.Helper()
	return p.appCredential(t, nil, rules)
}

// AppCredentialUntil makes one that ends at a moment.
func (p *Project) AppCredentialUntil(t testing.TB, end time.Time) (id, secret string) {
	t.Helper()
	return p.appCredential(t, &end, nil)
}

func (p *Project) appCredential(t testing.TB, end *time.Time, rules []AccessRule) (id, secret string) {
	t.Helper()
	opts := applicationcredentials.CreateOpts{
		Name: fmt.Sprintf("test-%x", rand.Uint64()), AccessRules: rules, ExpiresAt: end, // Of a credential Keystone gives none of the roles that others imply.
		Roles: []applicationcredentials.Role{{Name: role}, {Name: "reader"}},
	}
	made, err := applicationcredentials.Create(context.Background(), Identity(t, p.Login(t)), p.UserID, opts).Extract()
	if err != nil {
		t.Fatal(err)
	}
	return made.ID, remember("an application credential's secret", made.Secret)
}

// DropAppCredential has the member take an application credential back.
func (p *Project) DropAppCredential(t testing.TB, id string) {
	t.Helper()
	if err := applicationcredentials.Delete(context.Background(), Identity(t, p.Login(t)), p.UserID, id).ExtractErr(); err != nil {
		t.Fatal(err)
	}
}

// Trust lets another user act with the member's role until a moment, and is the trust's id.
func (p *Project) Trust(t testing.TB, trusteeID string, impersonation bool, until time.Time) string {
	t.Helper()
	trust, err := trusts.Create(context.Background(), Identity(t, p.Login(t)), trusts.CreateOpts{
		TrustorUserID: p.UserID, TrusteeUserID: trusteeID, ProjectID: p.ID, Impersonation: impersonation,
		Roles: []trusts.Role{{Name: role}}, ExpiresAt: &until,
	}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	return trust.ID
}

// Trusts are the ids of the trusts that the project's member has given, as Keystone shows them to the member.
func (p *Project) Trusts(t testing.TB) []string {
	t.Helper()
	return p.trusts(t, Identity(t, p.Login(t)))
}

// TrustsForAdmin are the same as Keystone shows them to an admin, also of a member who is disabled or deleted.
func (p *Project) TrustsForAdmin(t testing.TB) []string {
	t.Helper()
	return p.trusts(t, p.keystone)
}

func (p *Project) trusts(t testing.TB, keystone *gophercloud.ServiceClient) []string {
	t.Helper()
	pages, err := trusts.List(keystone, trusts.ListOpts{TrustorUserID: p.UserID}).AllPages(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found, err := trusts.ExtractTrusts(pages)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, f := range found {
		ids = append(ids, f.ID)
	}
	return ids
}
