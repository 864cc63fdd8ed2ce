package testkit

import (
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
)

// KeystoneURL is the sandbox's own Keystone.
func KeystoneURL(t testing.TB) string {
	t.Helper()
	return strings.TrimSuffix(Login(t, "demo").IdentityEndpoint, "/")
}

// Endpoint is where a service of the sandbox is, by its type, as the catalog says it.
func Endpoint(t testing.TB, service string) string {
	t.Helper()
	at, err := Login(t, "demo").EndpointLocator(gophercloud.EndpointOpts{Type: service, Availability: gophercloud.AvailabilityPublic})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(at, "/")
}
