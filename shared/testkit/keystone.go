package testkit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/applicationcredentials"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/trusts"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
)

// Grant gives a user a role in the project. Another project's user loses it at the end of the test, before a user who
// was borrowed is given back: the next test would find two projects of that user.
func (p *Project) Grant(t testing.TB, userID, name string) {
	t.Helper()
	p.changed = true
	id := p.role(t, name)
	opts := roles.AssignOpts{UserID: userID, ProjectID: p.ID}
	check(t, roles.Assign(context.Background(), p.keystone, id, opts).ExtractErr())
	if userID == p.UserID {
		return
	}
	t.Cleanup(func() {
		err := roles.Unassign(context.Background(), p.keystone, id, roles.UnassignOpts(opts)).ExtractErr()
		if !gophercloud.ResponseCodeIs(err, http.StatusNotFound) { // the test has taken it, or deleted one of both
			check(t, err)
		}
	})
}

// grantMember gives the project's member the roles of a member.
func (p *Project) grantMember(t testing.TB) {
	t.Helper()
	for _, name := range memberRoles {
		p.Grant(t, p.UserID, name)
	}
}

// RemoveRole takes a role in the project from a user.
func (p *Project) RemoveRole(t testing.TB, userID, name string) {
	t.Helper()
	p.changed = true
	opts := roles.UnassignOpts{UserID: userID, ProjectID: p.ID}
	check(t, roles.Unassign(context.Background(), p.keystone, p.role(t, name), opts).ExtractErr())
}

// roleIDs are the ids of roles by name: no test renames one.
var roleIDs sync.Map

// role is the id of a role.
func (p *Project) role(t testing.TB, name string) string {
	t.Helper()
	if id, ok := roleIDs.Load(name); ok {
		return id.(string)
	}
	pages := must(roles.List(p.keystone, roles.ListOpts{Name: name}).AllPages(context.Background()))(t)
	found, err := roles.ExtractRoles(pages)
	if err != nil || len(found) != 1 {
		t.Fatalf("role %s: %v %v", name, found, err)
	}
	roleIDs.Store(name, found[0].ID)
	return found[0].ID
}

// Disable disables the project's member.
func (p *Project) Disable(t testing.TB) {
	t.Helper()
	p.enable(t, false)
}

// Enable enables the member.
func (p *Project) Enable(t testing.TB) {
	t.Helper()
	p.enable(t, true)
}

func (p *Project) enable(t testing.TB, enabled bool) {
	t.Helper()
	p.changed = true
	check(t, users.Update(context.Background(), p.keystone, p.UserID, users.UpdateOpts{Enabled: &enabled}).Err)
}

// Leave removes all roles of the member in the project.
func (p *Project) Leave(t testing.TB) {
	t.Helper()
	p.changed = true
	of := roles.ListAssignmentsOnResourceOpts{UserID: p.UserID, ProjectID: p.ID}
	for _, r := range all(t, roles.ListAssignmentsOnResource(p.keystone, of), roles.ExtractRoles) {
		opts := roles.UnassignOpts{UserID: p.UserID, ProjectID: p.ID}
		check(t, roles.Unassign(context.Background(), p.keystone, r.ID, opts).ExtractErr())
	}
}

// ResetPassword gives the project's member another password, and waits until Keystone accepts tokens by it: with the
// old tokens it revokes every one that was issued in the same second.
func (p *Project) ResetPassword(t testing.TB) {
	t.Helper()
	p.changed = true
	p.password = newPassword()
	check(t, users.Update(context.Background(), p.keystone, p.UserID, users.UpdateOpts{Password: p.password}).Err)
	Eventually(t, time.Minute, "a token by the new password is valid", func() bool {
		client := p.Login(t)
		return tokens.Get(context.Background(), Identity(t, client), client.Token()).Err == nil
	})
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
	p.changed = true
	check(t, projects.Update(context.Background(), p.keystone, p.ID, projects.UpdateOpts{Enabled: &enabled}).Err)
}

// DeleteProject deletes the project before the end of the test.
func (p *Project) DeleteProject(t testing.TB) {
	t.Helper()
	p.changed = true
	check(t, projects.Delete(context.Background(), p.keystone, p.ID).ExtractErr())
}

// DeleteUser deletes the project's member before the end of the test.
func (p *Project) DeleteUser(t testing.TB) {
	t.Helper()
	p.changed = true
	check(t, users.Delete(context.Background(), p.keystone, p.UserID).ExtractErr())
}

// HasTrust reports whether Keystone lists a trust to an admin.
func HasTrust(t testing.TB, id string) bool {
	t.Helper()
	found := all(t, trusts.List(Identity(t, Login(t, "admin")), trusts.ListOpts{}), trusts.ExtractTrusts)
	return slices.ContainsFunc(found, func(trust trusts.Trust) bool { return trust.ID == id })
}

// DropTrust deletes a trust as the member.
func (p *Project) DropTrust(t testing.TB, id string) {
	t.Helper()
	check(t, trusts.Delete(context.Background(), Identity(t, p.Login(t)), id).ExtractErr())
}

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

// DropAppCredential deletes an application credential as the member. Keystone refuses a token that it has issued in the
// second in which it has revoked the user's tokens, and not the next one.
func (p *Project) DropAppCredential(t testing.TB, id string) {
	t.Helper()
	Eventually(t, 10*time.Second, "the member's token is valid", func() bool {
		err := applicationcredentials.Delete(t.Context(), Identity(t, p.Login(t)), p.UserID, id).ExtractErr()
		if gophercloud.ResponseCodeIs(err, http.StatusUnauthorized) {
			time.Sleep(500 * time.Millisecond)
			return false
		}
		check(t, err)
		return true
	})
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
