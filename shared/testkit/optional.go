package testkit

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumes"
	"github.com/gophercloud/gophercloud/v2/openstack/keymanager/v1/secrets"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
)

// The services that a setting of scripts/sandbox leaves out: Cinder, Octavia and Barbican.

// BlockStorage returns a client of Cinder.
func BlockStorage(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	return must(openstack.NewBlockStorageV3(client, gophercloud.EndpointOpts{}))(t)
}

// LoadBalancers returns a client of Octavia.
func LoadBalancers(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	return must(openstack.NewLoadBalancerV2(client, gophercloud.EndpointOpts{}))(t)
}

// KeyManager returns a client of Barbican.
func KeyManager(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	return must(openstack.NewKeyManagerV1(client, gophercloud.EndpointOpts{}))(t)
}

// MakeSecret makes a secret without a payload.
func (p *Project) MakeSecret(t testing.TB, name string) {
	t.Helper()
	must(secrets.Create(t.Context(), KeyManager(t, p.Login(t)), secrets.CreateOpts{Name: name}).Extract())(t)
}

// Payload returns the payload of a secret.
func (p *Project) Payload(t testing.TB, id, contentType string) string {
	t.Helper()
	opts := secrets.GetPayloadOpts{PayloadContentType: contentType}
	return string(must(secrets.GetPayload(t.Context(), KeyManager(t, p.Login(t)), id, opts).Extract())(t))
}

// DeleteVolumes deletes the project's servers and volumes, with the volumes' snapshots, and waits until they are gone.
func (p *Project) DeleteVolumes(t testing.TB) {
	t.Helper()
	p.removeServers(t, Login(t, "admin"))
	cinder := BlockStorage(t, p.Login(t))
	Eventually(t, time.Minute, "the project's volumes are gone", func() bool {
		left := all(t, volumes.List(cinder, volumes.ListOpts{}), volumes.ExtractVolumes)
		for _, v := range left { // one that is not idle is refused, and deleted at the next look
			err := volumes.Delete(context.Background(), cinder, v.ID, volumes.DeleteOpts{Cascade: true}).ExtractErr()
			ignore(t, err, http.StatusNotFound, http.StatusBadRequest)
		}
		return len(left) == 0
	})
}

// DeleteLoadBalancers deletes the project's load balancers with all that is in them, and waits until they are gone.
func (p *Project) DeleteLoadBalancers(t testing.TB) {
	t.Helper()
	octavia := LoadBalancers(t, p.Login(t))
	Eventually(t, time.Minute, "the project's load balancers are gone", func() bool {
		list := loadbalancers.List(octavia, loadbalancers.ListOpts{ProjectID: p.ID})
		left := all(t, list, loadbalancers.ExtractLoadBalancers)
		for _, b := range left {
			opts := loadbalancers.DeleteOpts{Cascade: true}
			err := loadbalancers.Delete(context.Background(), octavia, b.ID, opts).ExtractErr()
			ignore(t, err, http.StatusNotFound, http.StatusConflict)
		}
		return len(left) == 0
	})
}

// ignore fails the test for any error but an answer with one of the statuses.
func ignore(t testing.TB, err error, statuses ...int) {
	t.Helper()
	for _, status := range statuses {
		if gophercloud.ResponseCodeIs(err, status) {
			return
		}
	}
	check(t, err)
}
