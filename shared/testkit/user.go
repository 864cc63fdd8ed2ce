package testkit

import (
	"context"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/applicationcredentials"
)

// Environment is what logs the project's member in, as an openrc file says it.
func (p *Project) Environment() map[string]string {
	return map[string]string{
		"OS_AUTH_URL": p.keystone.Endpoint, "OS_USERNAME": p.Name, "OS_PASSWORD": p.password, "OS_PROJECT_NAME": p.Name,
		"OS_USER_DOMAIN_ID": p.DomainID, "OS_PROJECT_DOMAIN_ID": p.DomainID,
	}
}

// AppCredentialName is what an application credential of the member's is called.
func (p *Project) AppCredentialName(t testing.TB, id string) string {
	t.Helper()
	found, err := applicationcredentials.Get(context.Background(), Identity(t, p.Login(t)), p.UserID, id).Extract()
	if err != nil {
		t.Fatal(err)
	}
	return found.Name
}
