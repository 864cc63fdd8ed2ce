package openstack

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

func catalogOf(t *testing.T, text string) catalog {
	t.Helper()
	var c catalog
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

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

// TestCatalogIsReadOnce for all who ask at the same time, per scope, and again after a few minutes.
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
		ask := func(scope string) {
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
				all.Go(func() { ask("p1") })
			}
			all.Wait()
			if reads.Load() != step.reads {
				t.Errorf("after %s: it was read %d times, want %d", step.sleep, reads.Load(), step.reads)
			}
		}
		if ask("p2"); reads.Load() != 3 {
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

// TestAFailedCatalogIsNotKept, and says what is away.
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
