package testkit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
)

// Service asks a service of OpenStack directly, in the name of a project's member.
type Service struct{ client *gophercloud.ServiceClient }

// Service is nova, cinder, glance, octavia or barbican.
func (p *Project) Service(t testing.TB, name string) Service {
	t.Helper()
	p.changed = true
	client := p.Login(t)
	switch name {
	case "nova":
		return Service{Compute(t, client)}
	case "cinder":
		return Service{BlockStorage(t, client)}
	case "glance":
		return Service{must(openstack.NewImageV2(client, gophercloud.EndpointOpts{}))(t)}
	case "octavia":
		return Service{LoadBalancers(t, client)}
	case "barbican":
		return Service{KeyManager(t, client)}
	}
	t.Fatalf("no service %q", name)
	return Service{}
}

// Get reads the JSON at a path, and returns the status of the answer.
func (s Service) Get(t testing.TB, path string, into any) (status int) {
	t.Helper()
	return s.call(t, http.MethodGet, path, &gophercloud.RequestOpts{JSONResponse: into})
}

// Has reports whether a path is not 404.
func (s Service) Has(t testing.TB, path string) bool {
	t.Helper()
	return s.call(t, http.MethodGet, path, &gophercloud.RequestOpts{}) != http.StatusNotFound
}

// Do sends a request whose answer does not matter, with a body or nil and headers in pairs.
func (s Service) Do(t testing.TB, method, path string, body any, header ...string) (status int) {
	t.Helper()
	opts := &gophercloud.RequestOpts{JSONBody: body, MoreHeaders: map[string]string{}}
	for i := 0; i+1 < len(header); i += 2 {
		opts.MoreHeaders[header[i]] = header[i+1]
	}
	return s.call(t, method, path, opts)
}

// Text reads what is at a path as it is, such as the content of an image.
func (s Service) Text(t testing.TB, path, accept string) string {
	t.Helper()
	resp := must(s.client.Request(context.Background(), http.MethodGet, s.client.ServiceURL(path),
		&gophercloud.RequestOpts{MoreHeaders: map[string]string{"Accept": accept}, KeepResponseBody: true}))(t)
	defer func() { _ = resp.Body.Close() }()
	return string(must(io.ReadAll(resp.Body))(t))
}

func (s Service) call(t testing.TB, method, path string, opts *gophercloud.RequestOpts) (status int) {
	t.Helper()
	opts.OkCodes = []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent}
	resp, err := s.client.Request(context.Background(), method, s.client.ServiceURL(path), opts)
	if refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return refused.Actual
	}
	check(t, err)
	return resp.StatusCode
}
