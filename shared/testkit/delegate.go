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

// AccessRule is a call that an application credential may make.
type AccessRule = applicationcredentials.AccessRule

// AppCredential makes an application credential of the project's member with the member's roles. Access rules restrict
// it to the calls that they list.
func (p *Project) AppCredential(t testing.TB, rules ...AccessRule) (id, secret string) {
	t.Helper()
	return p.appCredential(t, nil, rules)
}

// AppCredentialUntil makes one that expires.
func (p *Project) AppCredentialUntil(t testing.TB, end time.Time) (id, secret string) {
	t.Helper()
	return p.appCredential(t, &end, nil)
}

func (p *Project) appCredential(t testing.TB, end *time.Time, rules []AccessRule) (id, secret string) {
	t.Helper()
	p.changed = true
	opts := applicationcredentials.CreateOpts{
		Name: fmt.Sprintf("test-%x", rand.Uint64()), AccessRules: rules, ExpiresAt: end,
		// A credential does not get the roles that its own roles imply.
		Roles: []applicationcredentials.Role{{Name: role}, {Name: "reader"}},
	}
	keystone := Identity(t, p.Login(t))
	made := must(applicationcredentials.Create(context.Background(), keystone, p.UserID, opts).Extract())(t)
	return made.ID, remember("an application credential's secret", made.Secret)
}

// DropAppCredential deletes an application credential as the member.
func (p *Project) DropAppCredential(t testing.TB, id string) {
	t.Helper()
	check(t, applicationcredentials.Delete(context.Background(), Identity(t, p.Login(t)), p.UserID, id).ExtractErr())
}

// Trust makes a trust that lets another user act with the role member, or with the given ones, and returns its id.
func (p *Project) Trust(
	t testing.TB, trusteeID string, impersonation bool, until time.Time, names ...string,
) string {
	t.Helper()
	p.changed = true
	if len(names) == 0 {
		names = []string{role}
	}
	granted := make([]trusts.Role, len(names))
	for n, name := range names {
		granted[n] = trusts.Role{Name: name}
	}
	trust := must(trusts.Create(context.Background(), Identity(t, p.Login(t)), trusts.CreateOpts{
		TrustorUserID: p.UserID, TrusteeUserID: trusteeID, ProjectID: p.ID, Impersonation: impersonation,
		Roles: granted, ExpiresAt: &until,
	}).Extract())(t)
	return trust.ID
}

// Trusts returns the ids of the trusts whose trustor is the project's member, as Keystone shows them to the member.
func (p *Project) Trusts(t testing.TB) []string {
	t.Helper()
	return p.trusts(t, Identity(t, p.Login(t)))
}

// ShowTrust returns a trust as Keystone shows it to the project's member.
func (p *Project) ShowTrust(t testing.TB, id string) trusts.Trust {
	t.Helper()
	return *must(trusts.Get(context.Background(), Identity(t, p.Login(t)), id).Extract())(t)
}

// TrustsForAdmin returns the same as Keystone shows them to an admin, even of a disabled or deleted member.
func (p *Project) TrustsForAdmin(t testing.TB) []string {
	t.Helper()
	return p.trusts(t, p.keystone)
}

func (p *Project) trusts(t testing.TB, keystone *gophercloud.ServiceClient) []string {
	t.Helper()
	found := all(t, trusts.List(keystone, trusts.ListOpts{TrustorUserID: p.UserID}), trusts.ExtractTrusts)
	ids := []string{}
	for _, f := range found {
		ids = append(ids, f.ID)
	}
	return ids
}

// AppCredentialToken returns a token of an application credential.
func (p *Project) AppCredentialToken(t testing.TB, id, secret string) string {
	t.Helper()
	return login(t, gophercloud.AuthOptions{
		IdentityEndpoint: p.keystone.Endpoint, ApplicationCredentialID: id, ApplicationCredentialSecret: secret,
	}).Token()
}

// TrustToken returns a token of the trustee, another project's member, for a trust by this project's member.
func (p *Project) TrustToken(t testing.TB, trustee *Project, impersonation bool) string {
	t.Helper()
	id := p.Trust(t, trustee.UserID, impersonation, time.Now().Add(time.Hour))
	return login(t, gophercloud.AuthOptions{
		IdentityEndpoint: p.keystone.Endpoint, UserID: trustee.UserID, Password: trustee.password,
		Scope: &gophercloud.AuthScope{TrustID: id},
	}).Token()
}

// SystemToken returns the admin's token scoped to the system.
func SystemToken(t testing.TB) string {
	t.Helper()
	auth := authOptions(t, "admin")
	auth.Scope = &gophercloud.AuthScope{System: true}
	return login(t, auth).Token()
}

// Environment returns the member's login, as an openrc file sets it.
func (p *Project) Environment() map[string]string {
	return map[string]string{
		"OS_AUTH_URL": p.keystone.Endpoint, "OS_USERNAME": p.Name, "OS_PASSWORD": p.password, "OS_PROJECT_NAME": p.Name,
		"OS_USER_DOMAIN_ID": p.DomainID, "OS_PROJECT_DOMAIN_ID": p.DomainID,
	}
}

// AppCredentialName returns the name of an application credential of the member.
func (p *Project) AppCredentialName(t testing.TB, id string) string {
	t.Helper()
	keystone := Identity(t, p.Login(t))
	return must(applicationcredentials.Get(context.Background(), keystone, p.UserID, id).Extract())(t).Name
}
