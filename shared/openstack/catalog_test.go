package openstack

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func TestEndpointIsNeverGuessed(t *testing.T) {
	t.Parallel()
	c := catalogOf(t, `[
		{"type":"compute","name":"nova","endpoints":[
			{"interface":"public","region_id":"r1","url":"http://one/v2.1"},{"interface":"internal","region_id":"r1","url":"http://inside/v2.1/"},
			{"interface":"public","region_id":"r2","url":"http://two/v2.1/"},{"interface":"public","region_id":"r1","url":"http://again/v2.1"}]},
		{"type":"compute","endpoints":[{"interface":"internal","region_id":"r1","url":"http://another/v2.1"}]},
		{"type":"placement","endpoints":[{"interface":"public","region_id":"r1","url":"http://127.0.0.1/p"},{"interface":"public","region_id":"r1","url":"http://localhost/p"}]},
		{"type":"key-manager","endpoints":[{"interface":"public","region_id":"r1","url":"http://keys"},{"interface":"public","region_id":"r1","url":"http://keys"}]},
		{"type":"image","endpoints":[{"interface":"public","region_id":"r1","url":"http://image"},{"interface":"admin","region_id":"r2","url":"http://admin"}]},
		{"type":"volumev3","endpoints":[]},
		{"type":"network","endpoints":null}]`)
	for name, tc := range map[string]struct {
		service, region, iface string
		want                   string
		code                   apperr.Code
		says                   string
	}{
		"a region":                {"compute", "r1", "public", "http://one/v2.1/", "", ""},
		"the other region":        {"compute", "r2", "public", "http://two/v2.1/", "", ""},
		"another interface":       {"compute", "r1", "internal", "http://inside/v2.1/", "", ""},
		"the only one of several": {"compute", "", "internal", "http://inside/v2.1/", "", ""},
		"two in one region":       {"placement", "", "public", "http://127.0.0.1/p/", "", ""},
		"two, and a region":       {"placement", "r1", "public", "http://127.0.0.1/p/", "", ""},
		"one URL twice":           {"key-manager", "", "public", "http://keys/", "", ""},
		"several regions":         {"compute", "", "public", "", apperr.Internal, "in several regions (r1, r2): OS_REGION_NAME"},
		"one region":              {"image", "", "public", "http://image/", "", ""},
		"no such region": {
			"compute", "r3", "public", "", apperr.Unsupported, `no compute service (interface public, region "r3")`,
		},
		"not in that region": {"image", "r2", "public", "", apperr.Unsupported, "no image service"},
		"no such service":    {"load-balancer", "", "public", "", apperr.Unsupported, "no load-balancer service"},
		"no endpoints":       {"volumev3", "", "public", "", apperr.Unsupported, "no volumev3 service"},
		"null endpoints":     {"network", "", "public", "", apperr.Unsupported, "no network service"},
		"a part of a type":   {"comput", "", "public", "", apperr.Unsupported, "no comput service"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.endpoint(tc.service, tc.region, tc.iface)
			if got != tc.want || apperr.CodeOf(err) != tc.code || err != nil &&
				!strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %q %v", got, err)
			}
		})
	}
}

// TestEndpointBase: a version is added to an endpoint that lacks it, and not twice.
func TestEndpointBase(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	for path, want := range map[string]string{
		"": "/v2.0/networks", "/v2.0": "/v2.0/networks", "/v2.0/": "/v2.0/networks", "/net": "/net/v2.0/networks",
	} {
		cloud := s.cloud(t, nil)
		cloud.catalogs.Add("p1",
			catalogOf(t, `[{"type":"network","endpoints":[{"interface":"public","url":"http://n`+path+`"}]}]`))
		client, err := cloud.As(theToken, "p1").neutron(t.Context())
		if err != nil || client.ServiceURL("networks") != "http://n"+want {
			t.Errorf("%q: got %s %v", path, client.ServiceURL("networks"), err)
		}
	}
}

// TestCatalogIsReadOnce for all callers at the same time, per scope, and again after a few minutes.
func TestCatalogIsReadOnce(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	const body = `{"catalog":[{"type":"compute","endpoints":[{"interface":"public","url":"http://nova/v2.1"}]}]}`
	cloud := bubbled(t, func(*http.Request) (*http.Response, error) {
		reads.Add(1)
		time.Sleep(time.Second)
		return response(200, nil, body), nil
	})
	synctest.Test(t, func(t *testing.T) {
		readAs := func(scope string) {
			if got, err := cloud.As(theToken, scope).endpoint(t.Context(), "compute"); err != nil ||
				got != "http://nova/v2.1/" {
				t.Errorf("got %q %v", got, err)
			}
		}
		for _, step := range []struct {
			sleep time.Duration
			reads int64
		}{{0, 1}, {catalogTTL - 2*time.Second, 1}, {3 * time.Second, 2}, {0, 2}} {
			time.Sleep(step.sleep)
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() { readAs("p1") })
			}
			all.Wait()
			if reads.Load() != step.reads {
				t.Errorf("after %s: it was read %d times, want %d", step.sleep, reads.Load(), step.reads)
			}
		}
		if readAs("p2"); reads.Load() != 3 {
			t.Errorf("another scope: it was read %d times", reads.Load())
		}
	})
}

// TestCatalogOfAnImpatientCaller: who hangs up does not take the catalog from those who wait with it.
func TestCatalogOfAnImpatientCaller(t *testing.T) {
	t.Parallel()
	cloud := bubbled(t, func(r *http.Request) (*http.Response, error) {
		select {
		case <-time.After(2 * time.Second):
			return response(200, nil,
				`{"catalog":[{"type":"compute","endpoints":[{"interface":"public","url":"http://nova/v2.1"}]}]}`), nil
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	})
	synctest.Test(t, func(t *testing.T) {
		impatient, hangUp := context.WithTimeout(t.Context(), time.Second)
		defer hangUp()
		began := time.Now()
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := cloud.As(theToken, "p1").endpoint(impatient, "compute"); err == nil ||
				time.Since(began) != time.Second {
				t.Errorf("the impatient one got %v after %s", err, time.Since(began))
			}
		})
		synctest.Wait()
		for range 5 {
			all.Go(func() {
				if _, err := cloud.As(theToken, "p1").endpoint(t.Context(), "compute"); err != nil {
					t.Errorf("another got %v", err)
				}
			})
		}
		all.Wait()
	})
}

// TestCatalogOfAccessRules: a Keystone that enforces access rules itself refuses the catalog, and validates the token.
func TestCatalogOfAccessRules(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		for _, valid := range []bool{true, false} {
			s := newStub(t)
			s.answer("GET /compute/servers/id", 200, `{"server":{"id":"id"}}`)
			good := `{"token":` + s.catalog("compute") + `}`
			s.answer("GET /rules/v3/auth/catalog", status, `{"error":{"message":"no"}}`)
			s.mux.HandleFunc("GET /rules/v3/auth/tokens", func(w http.ResponseWriter, r *http.Request) {
				if !valid || r.Header.Get("X-Subject-Token") != theToken || r.URL.RawQuery != "" ||
					r.Header.Get("OpenStack-Identity-Access-Rules") == "" {
					w.WriteHeader(http.StatusUnauthorized)
				}
				_, _ = w.Write([]byte(good))
			})
			session := s.cloud(t, func(c *Config) { c.AuthURL = s.url + "/rules/" }).As(theToken, "p1")
			err := read(t.Context(), session)
			want := map[int]apperr.Code{401: apperr.Unauthenticated, 403: apperr.Forbidden}[status]
			if valid != (err == nil) || !valid && apperr.CodeOf(err) != want {
				t.Errorf("%d, a valid token %v: got %v", status, valid, err)
			}
		}
	}
}

// TestAFailedCatalogIsNotKept, and says what is unavailable.
func TestAFailedCatalogIsNotKept(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/servers/id", 200, `{"server":{"id":"id"}}`)
	good := s.catalog("compute")
	down := true
	s.mux.HandleFunc("GET /flaky/v3/auth/catalog", func(w http.ResponseWriter, _ *http.Request) {
		if down {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(good))
	})
	session := s.cloud(t, func(c *Config) { c.AuthURL = s.url + "/flaky/" }).As(theToken, "p1")
	if err := read(t.Context(), session); apperr.CodeOf(err) != apperr.Unavailable ||
		apperr.As(err).Message != "keystone is not available" {
		t.Errorf("got %v", err)
	}
	down = false
	if err := read(t.Context(), session); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// novaVersions is what Nova's root answers in Zed, with a host that only Nova knows, as behind a proxy.
const novaVersions = `{"versions": [
	{"id": "v2.0", "status": "SUPPORTED", "version": "", "links": [{"rel": "self", "href": "http://nova.internal:8774/v2/"}]},
	{"id": "v2.1", "status": "CURRENT", "version": "2.93", "links": [{"rel": "self", "href": "http://nova.internal:8774/v2.1/"}]}]}`

// TestAnUnversionedComputeEndpoint is read for its versions, once; the token goes to no host but the catalog's.
func TestAnUnversionedComputeEndpoint(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path   string // of the endpoint
		status int
		body   string
		want   string // what is called in the end; "" when it fails
		code   apperr.Code
	}{
		"several versions":    {"/compute", 200, novaVersions, "/compute/v2.1/servers/id", ""},
		"several, as choices": {"/compute/", 300, novaVersions, "/compute/v2.1/servers/id", ""},
		"the version itself": {
			"/compute", 200, `{"version": {"id": "v2.1", "status": "CURRENT"}}`, "/compute/servers/id", "",
		},
		"it has no document":     {"/compute", 404, "", "/compute/servers/id", ""},
		"it wants another token": {"/compute", 401, "", "/compute/servers/id", ""},
		"a link without a path": {
			"/compute", 200, `{"versions": [{"id": "v2.1", "links": [{"rel": "self", "href": ""}]}]}`,
			"/compute/v2.1/servers/id", "",
		},
		"versioned":                   {"/compute/v2.1", 500, "", "/compute/v2.1/servers/id", ""},
		"versioned, with the project": {"/compute/v2.1/p1", 500, "", "/compute/v2.1/p1/servers/id", ""},
		"too old":                     {"/compute", 200, `{"versions": [{"id": "v2.0"}]}`, "", apperr.Unsupported},
		"one version, too old":        {"/compute", 200, `{"version": {"id": "v2.0"}}`, "", apperr.Unsupported},
		"a page that is not JSON":     {"/compute", 200, "<html></html>", "/compute/servers/id", ""},
		"unavailable":                 {"/compute", 503, "", "", apperr.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET "+strings.TrimSuffix(tc.path, "/")+"/{$}", tc.status, tc.body)
			s.mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/servers/id") {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = w.Write([]byte(`{"server":{"id":"id"}}`))
			})
			cloud := s.cloud(t, nil)
			cloud.versions.Purge()
			cloud.catalogs.Add("p1",
				catalogOf(t, `[{"type":"compute","endpoints":[{"interface":"public","region_id":"r1","url":"`+s.url+tc.path+`"}]}]`))
			session := cloud.As(theToken, "p1")
			for range 2 {
				if err := read(t.Context(), session); apperr.CodeOf(err) != tc.code {
					t.Errorf("got %v", err)
				}
			}
			if tc.want != "" && len(s.to(tc.want)) != 2 {
				t.Errorf("%s was called %d times", tc.want, len(s.to(tc.want)))
			}
			if n := len(s.to(strings.TrimSuffix(tc.path, "/") + "/")); tc.want != "" && n > 1 {
				t.Errorf("the versions were read %d times", n)
			}
		})
	}
}

// TestALegacyComputeEndpoint: Nova ignores microversions at /v2 in silence, so v2.1 beside it is called, or nothing.
func TestALegacyComputeEndpoint(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path   string // of the endpoint
		status int
		body   string // of the endpoint above it
		want   string // what is called in the end; "" = nothing
		says   string
	}{
		"v2.1 is beside it":         {"/nova/v2", 200, novaVersions, "/nova/v2.1/servers/id", ""},
		"with the project":          {"/nova/v2/p1/", 300, novaVersions, "/nova/v2.1/servers/id", ""},
		"by its other name":         {"/nova/v2.0", 200, novaVersions, "/nova/v2.1/servers/id", ""},
		"v2.1 is above it":          {"/nova/v2", 200, `{"version": {"id": "v2.1"}}`, "/nova/servers/id", ""},
		"without v2.1":              {"/nova/v2", 200, `{"versions": [{"id": "v2.0"}]}`, "", "/nova/v2/ offers v2.0, v2; v2.1 is needed"},
		"without a document":        {"/nova/v2", 404, "", "", "/nova/v2/ offers v2; v2.1 is needed"},
		"a page that is not JSON":   {"/nova/v2/p1", 200, "<html></html>", "", "/nova/v2/p1/ offers v2; v2.1 is needed"},
		"a document that says none": {"/nova/v2", 200, "{}", "", "/nova/v2/ offers v2; v2.1 is needed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /nova/{$}", tc.status, tc.body)
			s.answer("GET /nova/v2.1/servers/id", 200, `{"server":{"id":"id"}}`)
			s.answer("GET /nova/servers/id", 200, `{"server":{"id":"id"}}`)
			catalog := `[{"type":"compute","endpoints":[{"interface":"public","region_id":"r1","url":"` + s.url + tc.path + `"}]},
				{"type":"image","endpoints":[{"interface":"public","region_id":"r1","url":"` + s.url + `"}]},
				{"type":"network","endpoints":[{"interface":"public","region_id":"r1","url":"` + s.url + `"}]}]`
			inCatalog, byVariable := s.cloud(t, nil), s.cloud(t, func(c *Config) { c.Compute = s.url + tc.path })
			inCatalog.catalogs.Add("p1", catalogOf(t, catalog))
			byVariable.catalogs.Add("p1", catalogOf(t, catalog))
			for _, cloud := range []*Cloud{inCatalog, byVariable} {
				session := cloud.As(theToken, "p1")
				err := read(t.Context(), session)
				wrong := session.checkEndpoints(t.Context(), Config{})
				if tc.want != "" {
					if err != nil || len(s.to(tc.want)) == 0 || len(wrong) != 0 {
						t.Errorf("%v, check says %v", err, wrong)
					}
					continue
				}
				if apperr.CodeOf(err) != apperr.Unsupported || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v", err)
				}
				if len(wrong) != 1 || wrong[0].Variable != "OS_COMPUTE_ENDPOINT_OVERRIDE" ||
					!strings.Contains(wrong[0].Detail, tc.says) {
					t.Errorf("check says %v", wrong)
				}
			}
		})
	}
}

// TestOlderVersionsInTheCatalog: the version that is called replaces one of a catalog that no one has updated.
func TestOlderVersionsInTheCatalog(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /glance/v2/images/id", 200, `{"id":"id"}`)
	s.answer("GET /octavia/v2.0/lbaas/loadbalancers", 200, `{"loadbalancers":[]}`)
	s.answer("GET /cinder/v3/p1/volumes/detail", 200, `{"volumes":[]}`)
	session := s.offering(t, `{"catalog":[{"type":"image","endpoints":[{"interface":"public","url":"`+s.url+`/glance/v1"}]},
		{"type":"load-balancer","endpoints":[{"interface":"public","url":"`+s.url+`/octavia/v1"}]},
		{"type":"block-storage","endpoints":[{"interface":"public","url":"`+s.url+`/cinder"}]}]}`)
	_, image := session.Image(t.Context(), "id")
	_, balancers := session.LoadBalancers(t.Context(), "p1", "tag")
	_, volumes := session.Volumes(t.Context(), "", "")
	if err := errors.Join(image, balancers, volumes); err != nil {
		t.Error(err)
	}
}

// TestEndpointOverrides go before the catalog, from the environment and from clouds.yaml, in this process's region
// only.
func TestEndpointOverrides(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /elsewhere/v2.1/servers/id", 200, `{"server":{"id":"id"}}`)
	s.answer("GET /elsewhere/{$}", 200, novaVersions)
	s.answer("GET /glance/v2/images/id", 200, `{"id":"id"}`)
	yaml := filepath.Join(t.TempDir(), "clouds.yaml")
	text := "clouds: {ours: {auth: {auth_url: '" + s.url + "'}, compute_endpoint_override: '" + s.url +
		"/elsewhere', image_endpoint_override: '" + s.url + "/glance/'}}"
	if err := os.WriteFile(yaml, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cloud := range map[string]*Cloud{
		"the environment": s.cloud(t, func(c *Config) { c.Compute, c.Image = s.url+"/elsewhere/", s.url+"/glance" }),
		"clouds.yaml":     s.cloud(t, func(c *Config) { c.Cloud, c.ConfigFile = "ours", yaml }),
	} {
		session := cloud.As(theToken, "p1")
		if err := read(t.Context(), session); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := session.Image(t.Context(), "id"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(s.to("/v3/auth/catalog")) != 0 {
			t.Errorf("%s: the catalog was read, which no one needs", name)
		}
		if at := cloud.At("", "r2").overrides.Compute + cloud.At("http://another", "").overrides.Compute; at != "" {
			t.Errorf("%s: another region or cloud has the override %s", name, at)
		}
	}
	if err := (Config{
		AuthURL: s.url, Interface: "public",
		Overrides: Overrides{Network: "neutron:9696"},
	}).Validate(); err == nil ||
		!strings.HasPrefix(err.Error(), `OS_NETWORK_ENDPOINT_OVERRIDE is "neutron:9696/": it must be a URL`) {
		t.Errorf("no scheme: %v", err)
	}
}

// TestOptionalEndpointOverrides: those of Cinder, Octavia and Barbican, which the catalog need not have. Cinder's gets
// its version and the project.
func TestOptionalEndpointOverrides(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /cinder/v3/p1/volumes/detail", 200, `{"volumes":[]}`)
	s.answer("GET /octavia/v2.0/lbaas/loadbalancers", 200, `{"loadbalancers":[]}`)
	s.answer("GET /barbican/v1/secrets", 200, `{"secrets":[]}`)
	yaml := filepath.Join(t.TempDir(), "clouds.yaml")
	text := "clouds: {ours: {auth: {auth_url: '" + s.url + "'}, block_storage_endpoint_override: '" + s.url +
		"/cinder/v3', load_balancer_endpoint_override: '" + s.url + "/octavia/v2', key_manager_endpoint_override: '" +
		s.url + "/barbican/v1'}, wrong: {auth: {auth_url: '" + s.url + "'}, key_manager_endpoint_override: barbican}}"
	if err := os.WriteFile(yaml, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cloud := range map[string]*Cloud{
		"the environment": s.cloud(t, func(c *Config) {
			c.BlockStorage, c.LoadBalancer, c.KeyManager = s.url+"/cinder", s.url+"/octavia/", s.url+"/barbican"
		}),
		"with the project": s.cloud(t, func(c *Config) {
			c.BlockStorage, c.LoadBalancer = s.url+"/cinder/v3/p1", s.url+"/octavia/v2.0"
			c.KeyManager = s.url + "/barbican/v1/"
		}),
		"clouds.yaml": s.cloud(t, func(c *Config) { c.Cloud, c.ConfigFile = "ours", yaml }),
	} {
		session := cloud.As(theToken, "p1")
		_, volumes := session.Volumes(t.Context(), "", "")
		_, balancers := session.LoadBalancers(t.Context(), "p1", "tag")
		_, secrets := session.Secrets(t.Context(), "")
		if err := errors.Join(volumes, balancers, secrets); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, service := range []string{"volumev3", "load-balancer", "key-manager"} {
			if has, err := session.HasService(t.Context(), service); !has || err != nil {
				t.Errorf("%s: it has no %s: %v", name, service, err)
			}
		}
	}
	config := Config{AuthURL: s.url, Interface: "public", Overrides: Overrides{BlockStorage: "cinder:8776"}}
	want := `OS_BLOCK_STORAGE_ENDPOINT_OVERRIDE is "cinder:8776/": it must be a URL, such as https://cinder.example.com`
	if err := config.Validate(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err := New(Config{Cloud: "wrong", ConfigFile: yaml}, Options{})
	if want := `OS_CLOUD is "wrong": its key_manager_endpoint_override is "barbican/"`; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestInRegion: a caller chooses among the catalog's regions; an unknown one is refused with those that there are.
func TestInRegion(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /one/v2.1/servers/id", 200, `{"server":{"id":"id","name":"one"}}`)
	s.answer("GET /two/v2.1/servers/id", 200, `{"server":{"id":"id","name":"two"}}`)
	cloud := s.cloud(t, func(c *Config) { c.Region, c.Compute = "r1", s.url+"/one/v2.1" })
	cloud.catalogs.Add("p1", catalogOf(t, `[{"type":"compute","endpoints":[{"interface":"public","region_id":"r1","url":"http://127.0.0.1:1/v2.1"},
		{"interface":"public","region_id":"r2","url":"`+s.url+`/two/v2.1"}]},
		{"type":"image","endpoints":[{"interface":"public","region_id":"r1","url":"http://127.0.0.1:1"}]}]`))
	for region, want := range map[string]string{"": "one", "r1": "one", "r2": "two"} {
		got, err := cloud.As(theToken, "p1").InRegion(region).Server(t.Context(), "id")
		if err != nil || got.Name != want {
			t.Errorf("region %q: got %q %v", region, got.Name, err)
		}
	}
	_, err := cloud.As(theToken, "p1").InRegion("r3").Server(t.Context(), "id")
	e := apperr.As(err)
	if e.Code != apperr.Invalid || len(e.Fields) != 1 || e.Fields[0].Field != "region" ||
		!slices.Equal(e.Fields[0].Allowed, []string{"r1", "r2"}) {
		t.Errorf("an unknown region: %+v", e)
	}
	if _, err := cloud.As(theToken, "p1").InRegion("r2").Image(t.Context(),
		"id"); apperr.CodeOf(err) != apperr.Unsupported {
		t.Errorf("a service that the region lacks: %v", err)
	}
	all, err := cloud.As(theToken, "p1").Regions(t.Context())
	if want := []domain.Region{
		{Name: "r1", Default: true, Services: []string{"compute", "image"}}, {Name: "r2", Services: []string{"compute"}},
	}; err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("the regions are %+v, %v", all, err)
	}
	session := cloud.As(theToken, "p1")
	session.actsAs = domain.ActsAs{UserID: "u", ProjectID: "p1"}
	if got := session.InRegion("r2").ActsAs(); got.UserID != "u" || got.ProjectID != "p1" {
		t.Errorf("in another region it acts as %+v", got)
	}
}
