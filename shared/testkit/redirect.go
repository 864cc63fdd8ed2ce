package testkit

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
)

// Proxy stands before the real Keystone and changes what it is told to: where its catalog says that a service
// is. It is for faults that the shared sandbox cannot be made to show to one test alone.
type Proxy struct {
	server *httptest.Server
}

// nowhere is an address of loopback where nobody listens (port 1 is reserved).
const nowhere = "http://127.0.0.1:1"

// Redirect makes a Keystone whose catalog says that the services are where nobody listens.
func Redirect(t testing.TB, services ...string) *Proxy {
	t.Helper()
	to := map[string]string{}
	for _, s := range services {
		to[s] = nowhere
	}
	return RedirectTo(t, to)
}

// RedirectTo makes a Keystone whose catalog says that each named service is at the URL given.
func RedirectTo(t testing.TB, to map[string]string) *Proxy {
	t.Helper()
	auth, _, _, err := clouds.Parse(clouds.WithCloudName("demo"), clouds.WithLocations(CloudsYAML(t)))
	if err != nil {
		t.Fatal(err)
	}
	keystone, err := url.Parse(auth.IdentityEndpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = keystone.Scheme, keystone.Host },
		ModifyResponse: func(resp *http.Response) error { return rewrite(resp, to) },
	}
	p := &Proxy{server: httptest.NewServer(proxy)}
	t.Cleanup(p.server.Close)
	return p
}

// URL is the proxy's Keystone.
func (p *Proxy) URL() string { return p.server.URL + "/v3" }

// Close makes Keystone unreachable.
func (p *Proxy) Close() { p.server.Close() }

// Env is the environment that sends a process to this Keystone, with one of clouds.yaml as service account.
func (p *Proxy) Env(t testing.TB, account string) map[string]string {
	t.Helper()
	auth, _, _, err := clouds.Parse(clouds.WithCloudName(account), clouds.WithLocations(CloudsYAML(t)))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"OS_CLOUD": "", "OS_AUTH_URL": p.URL(), "OS_USERNAME": auth.Username, "OS_PASSWORD": auth.Password,
		"OS_USER_DOMAIN_NAME": auth.DomainName, "OS_PROJECT_NAME": auth.Scope.ProjectName, "OS_PROJECT_DOMAIN_NAME": auth.Scope.DomainName,
	}
}

// Through stands before a real service: before is called for each request, which then goes on to the service at
// the URL. It gives its own URL and the number of requests so far.
func Through(t testing.TB, to string, before func(*http.Request)) (at string, calls *atomic.Int64) {
	t.Helper()
	service, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	calls = &atomic.Int64{}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = service.Scheme, service.Host }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		before(r)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL + strings.TrimSuffix(service.Path, "/"), calls
}

// rewrite changes the endpoints in a token's or a catalog's body.
func rewrite(resp *http.Response, to map[string]string) error {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var document map[string]any
	if json.Unmarshal(body, &document) == nil {
		list, _ := document["catalog"].([]any)
		if token, ok := document["token"].(map[string]any); ok {
			list, _ = token["catalog"].([]any)
		}
		for _, entry := range list {
			service := entry.(map[string]any)
			at, ok := to[service["type"].(string)]
			for _, e := range service["endpoints"].([]any) {
				if ok {
					e.(map[string]any)["url"] = at
				}
			}
		}
		if body, err = json.Marshal(document); err != nil {
			return err
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	resp.ContentLength = int64(len(body))
	resp.Header.Del("Content-Length")
	return nil
}
