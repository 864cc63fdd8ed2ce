package testkit

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// Proxy is a proxy of the real Keystone that changes the endpoints in its catalog. It simulates faults for one test
// only.
type Proxy struct {
	server *httptest.Server
}

// nowhere is an address where no one listens: port 1 is reserved.
const nowhere = "http://127.0.0.1:1"

// Redirect makes a Keystone whose catalog has the services at an address where no one listens.
func Redirect(t testing.TB, services ...string) *Proxy {
	t.Helper()
	to := map[string]string{}
	for _, s := range services {
		to[s] = nowhere
	}
	return RedirectTo(t, to)
}

// Without makes a Keystone whose catalog lacks the services.
func Without(t testing.TB, services ...string) *Proxy {
	t.Helper()
	to := map[string]string{}
	for _, s := range services {
		to[s] = ""
	}
	return RedirectTo(t, to)
}

// RedirectTo makes a Keystone whose catalog has the given URLs of services. It lacks a service whose URL is "".
func RedirectTo(t testing.TB, to map[string]string) *Proxy {
	t.Helper()
	return rewriting(t, func(list []any) []any { return redirected(list, to) })
}

// Twice makes a Keystone whose catalog has each endpoint of the services twice, the second time at localhost.
func Twice(t testing.TB, services ...string) *Proxy {
	t.Helper()
	return rewriting(t, func(list []any) []any {
		for _, entry := range list {
			service := entry.(map[string]any)
			if !slices.Contains(services, service["type"].(string)) {
				continue
			}
			var more []any
			for _, e := range service["endpoints"].([]any) {
				second := maps.Clone(e.(map[string]any))
				second["url"] = strings.Replace(second["url"].(string), "127.0.0.1", "localhost", 1)
				more = append(more, second)
			}
			service["endpoints"] = append(service["endpoints"].([]any), more...)
		}
		return list
	})
}

func rewriting(t testing.TB, change func(catalog []any) []any) *Proxy {
	t.Helper()
	auth := authOptions(t, "demo")
	keystone := must(url.Parse(auth.IdentityEndpoint))(t)
	proxy := reverseProxy(keystone)
	proxy.ModifyResponse = func(resp *http.Response) error { return rewrite(resp, change) }
	p := &Proxy{server: httptest.NewServer(proxy)}
	t.Cleanup(p.server.Close)
	return p
}

func reverseProxy(to *url.URL) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
	}}
}

// URL returns the URL of the proxy's Keystone.
func (p *Proxy) URL() string { return p.server.URL + "/v3" }

// Close makes Keystone unreachable.
func (p *Proxy) Close() { p.server.Close() }

// Env returns the environment of a process that uses this Keystone, with a service account of clouds.yaml.
func (p *Proxy) Env(t testing.TB, account string) map[string]string {
	t.Helper()
	auth := authOptions(t, account)
	return map[string]string{
		"OS_CLOUD": "", "OS_AUTH_URL": p.URL(), "OS_USERNAME": auth.Username, "OS_PASSWORD": auth.Password,
		"OS_USER_DOMAIN_NAME": auth.DomainName, "OS_PROJECT_NAME": auth.Scope.ProjectName,
		"OS_PROJECT_DOMAIN_NAME": auth.Scope.DomainName,
	}
}

// Intercept is a proxy of a real service. It calls before for each request, and returns its own URL and the number of
// requests so far.
func Intercept(t testing.TB, to string, before func(*http.Request)) (at string, calls *atomic.Int64) {
	t.Helper()
	calls = &atomic.Int64{}
	return Instead(t, to, func(_ http.ResponseWriter, r *http.Request) bool {
		calls.Add(1)
		before(r)
		return false
	}), calls
}

// Instead is a proxy of a real service that serves some requests itself: serve reports which. It returns its own URL.
func Instead(t testing.TB, to string, serve func(http.ResponseWriter, *http.Request) bool) (at string) {
	t.Helper()
	service := must(url.Parse(to))(t)
	proxy := reverseProxy(service)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !serve(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + strings.TrimSuffix(service.Path, "/")
}

// Hanging is a service that accepts requests and does not answer until the test ends. It returns its URL.
func Hanging(t testing.TB) string {
	t.Helper()
	ends := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-ends:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() {
		close(ends)
		server.Close()
	})
	return server.URL
}

// rewrite changes the endpoints in a token's or a catalog's body.
func rewrite(resp *http.Response, change func([]any) []any) error {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var document map[string]any
	if json.Unmarshal(body, &document) == nil {
		holder := document
		if token, ok := document["token"].(map[string]any); ok {
			holder = token
		}
		if list, ok := holder["catalog"].([]any); ok {
			holder["catalog"] = change(list)
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

// redirected is a catalog with other URLs of services.
func redirected(list []any, to map[string]string) []any {
	return slices.DeleteFunc(list, func(entry any) bool {
		service := entry.(map[string]any)
		at, ok := to[service["type"].(string)]
		for _, e := range service["endpoints"].([]any) {
			if ok {
				e.(map[string]any)["url"] = at
			}
		}
		return ok && at == ""
	})
}
