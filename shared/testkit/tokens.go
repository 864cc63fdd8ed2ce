package testkit

import (
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
)

// AppCredentialToken is a token of an application credential.
func (p *Project) AppCredentialToken(t testing.TB, id, secret string) string {
	t.Helper()
	return login(t, gophercloud.AuthOptions{IdentityEndpoint: p.keystone.Endpoint, ApplicationCredentialID: id, ApplicationCredentialSecret: secret}).Token()
}

// TrustToken is a token of another project's member, to whom the project's member has given a trust. With impersonation
// Keystone says that it is the project's member's.
func (p *Project) TrustToken(t testing.TB, trustee *Project, impersonation bool) string {
	t.Helper()
	id := p.Trust(t, trustee.UserID, impersonation, time.Now().Add(time.Hour))
	return login(t, gophercloud.AuthOptions{
		IdentityEndpoint: p.keystone.Endpoint, UserID: trustee.UserID, Password: trustee.password, Scope: &gophercloud.AuthScope{TrustID: id},
	}).Token()
}

// SystemToken is a token of the admin that is scoped to the system.
func SystemToken(t testing.TB) string {
	t.Helper()
	auth, _, _, err := clouds.Parse(clouds.WithCloudName("admin"), clouds.WithLocations(CloudsYAML(t)))
	if err != nil {
		t.Fatal(err)
	}
	auth.Scope = &gophercloud.AuthScope{System: true}
	return login(t, auth).Token()
}
