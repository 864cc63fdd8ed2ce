package openstack

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// offering is a session whose catalog is the one in a body of Keystone's.
func (s *stub) offering(t *testing.T, body string) *Session {
	t.Helper()
	var found struct {
		Catalog catalog `json:"catalog"`
	}
	if err := json.Unmarshal([]byte(body), &found); err != nil {
		t.Fatal(err)
	}
	cloud := s.cloud(t, nil)
	cloud.catalogs.Add("p1", found.Catalog)
	return cloud.As(theToken, "p1")
}

// TestPagesByMarkerOrOffset: of a link to the next page only its marker or offset is used, pages shift while they are
// read, and a service that gives the same page for ever is not asked for ever.
func TestPagesByMarkerOrOffset(t *testing.T) {
	t.Parallel()
	s, stranger := newStub(t), newStub(t)
	pages := func(pattern, by string, pages map[string]string) {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(pages[r.URL.Query().Get(by)]))
		})
	}
	pages("GET /block-storage/v3/p1/volumes/detail", "marker", map[string]string{
		"":  `{"volumes":[{"id":"a","status":"available","size":1,"created_at":"2026-01-02T03:04:05.000000","attachments":[{"server_id":"s"}]}],"volumes_links":[{"rel":"next","href":"` + stranger.url + `/volumes/detail?marker=a"}]}`,
		"a": `{"volumes":[{"id":"a"},{"id":"b","name":null,"metadata":{"x":"1"}}],"volumes_links":[{"rel":"next","href":"?marker=b"}]}`,
		"b": `{"volumes":[{"id":"b"}],"volumes_links":[{"rel":"next","href":"?marker=b"}]}`,
	})
	pages("GET /key-manager/v1/secrets", "offset", map[string]string{
		"":    `{"secrets":[{"secret_ref":"http://x/v1/secrets/a","name":"n","content_types":{"default":"text/plain"}}],"next":"` + stranger.url + `/v1/secrets?limit=100&offset=100"}`,
		"100": `{"secrets":[{"secret_ref":"http://x/v1/secrets/b","name":null,"content_types":null}]}`,
	})
	session := s.offering(t, s.catalog("block-storage", "key-manager"))
	volumes, err := session.Volumes(t.Context(), "k", "v")
	if err != nil || len(volumes) != 2 || volumes[0].SizeGB != 1 || volumes[0].CreatedAt.Second() != 5 ||
		!slices.Equal(volumes[0].Servers, []string{"s"}) || volumes[1].Metadata["x"] != "1" {
		t.Errorf("%+v %v", volumes, err)
	}
	if q := s.to("/block-storage/v3/p1/volumes/detail")[0].URL.Query(); q.Get("metadata") != "{'k': 'v'}" {
		t.Errorf("it was asked %v", q)
	}
	secrets, err := session.Secrets(t.Context(), "")
	want := []domain.StoredSecret{{ID: "a", Name: "n", ContentType: "text/plain"}, {ID: "b"}}
	if diff := cmp.Diff(want, secrets); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if len(stranger.calls) != 0 {
		t.Error("a page was asked of the host that the link names")
	}
}

// TestHasService: a catalog may list a service under another type.
func TestHasService(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	session := s.offering(t, s.catalog("block-storage", "image"))
	for service, want := range map[string]bool{"volumev3": true, "image": true, "load-balancer": false, "": false} {
		if got, err := session.HasService(t.Context(), service); err != nil || got != want {
			t.Errorf("%s: %t %v", service, got, err)
		}
	}
}

// TestOctaviaWhileItDeletes: a list that it fails once is read again; one that it always fails is not read for ever.
func TestOctaviaWhileItDeletes(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]apperr.Code{1: "", pageTries: apperr.BadGateway} {
		s, calls := newStub(t), 0
		s.mux.HandleFunc("GET /load-balancer/v2.0/lbaas/loadbalancers", func(w http.ResponseWriter, _ *http.Request) {
			if calls++; calls <= failures {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, `{"faultcode":"Server","faultstring":"'NoneType' object has no attribute 'to_dict'"}`)
				return
			}
			_, _ = io.WriteString(w, `{"loadbalancers":[]}`)
		})
		_, err := s.offering(t, s.catalog("load-balancer")).LoadBalancers(t.Context(), "p1", "x")
		if apperr.CodeOf(err) != want || calls != min(failures+1, pageTries) {
			t.Errorf("%d failures: %d calls, %v", failures, calls, err)
		}
	}
}

// TestOctaviaWithAVersion: its endpoint may end with any of its versions.
func TestOctaviaWithAVersion(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", "/", "/v2", "/v2.0", "/v2.0/"} {
		s := newStub(t)
		s.answer("GET /lb/v2.0/lbaas/loadbalancers", 200, `{"loadbalancers":[]}`)
		session := s.offering(t, `{"catalog":[{"type":"load-balancer","endpoints":[
			{"interface":"public","region_id":"r1","url":"`+s.url+`/lb`+path+`"}]}]}`)
		if _, err := session.LoadBalancers(t.Context(), "p1", "x"); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestLinksOfAnotherHost: a next link may name a host, a scheme or a path that only the service knows, as behind a
// proxy that ends TLS. The pages are read where the catalog says, and no other host gets the token.
func TestLinksOfAnotherHost(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path, key, links string
		item             string // the entry n of a page
		list             func(*Session) (int, error)
	}{
		"flavors": {
			"/compute/flavors/detail", "flavors", "flavors_links", `{"id":"%d"}`,
			func(s *Session) (int, error) { return lengthOf(s.Flavors(t.Context())) },
		},
		"keypairs": {
			"/compute/os-keypairs", "keypairs", "keypairs_links", `{"keypair":{"name":"%d"}}`,
			func(s *Session) (int, error) { return lengthOf(s.KeyPairs(t.Context())) },
		},
		"networks": {
			"/network/v2.0/networks", "networks", "networks_links", `{"id":"%d"}`,
			func(s *Session) (int, error) { return lengthOf(s.NetworkNames(t.Context())) },
		},
		"subnets": {
			"/network/v2.0/subnets", "subnets", "subnets_links", `{"id":"%d","network_id":"%[1]d"}`,
			func(s *Session) (int, error) {
				neutron, err := s.neutron(t.Context())
				if err != nil {
					return 0, err
				}
				found, err := subnetPages(t.Context(), neutron)
				return len(found), err
			},
		},
		"security groups": {
			"/network/v2.0/security-groups", "security_groups", "security_groups_links", `{"id":"%d"}`,
			func(s *Session) (int, error) { return lengthOf(s.SecurityGroups(t.Context())) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for link, host := range map[string]func(*stub, *stub) string{
				"another host":   func(_, stranger *stub) string { return stranger.url },
				"another scheme": func(s, _ *stub) string { return strings.Replace(s.url, "http:", "https:", 1) },
				"another path":   func(s, _ *stub) string { return s.url + "/inside" },
				"a path only":    func(*stub, *stub) string { return "" },
			} {
				s, stranger := newStub(t), newStub(t)
				s.mux.HandleFunc("GET "+tc.path, func(w http.ResponseWriter, r *http.Request) {
					n, next := 1, fmt.Sprintf(`,%q:[{"rel":"next","href":"%s/x?limit=1&marker=1"}]`, tc.links, host(s, stranger))
					if r.URL.Query().Get("marker") == "1" {
						n, next = 2, ""
					}
					_, _ = fmt.Fprintf(w, `{%q:[`+fmt.Sprintf(tc.item, n)+`]%s}`, tc.key, next)
				})
				if got, err := tc.list(s.session(t)); got != 2 || err != nil {
					t.Errorf("%s: %d entries, %v", link, got, err)
				}
				if len(stranger.calls) != 0 {
					t.Errorf("%s: a page was requested from the host of the link", link)
				}
			}
		})
	}
}

// TestAFailedListIsNil: callers leave out what could not be read, and do not show it as empty.
func TestAFailedListIsNil(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	session := s.session(t)
	flavors, _ := session.Flavors(t.Context())
	images, _ := session.Images(t.Context(), "")
	networks, _ := session.Networks(t.Context())
	zones, err := session.Zones(t.Context())
	if flavors != nil || images != nil || networks != nil || zones != nil || err == nil {
		t.Errorf("got %v %v %v %v %v", flavors, images, networks, zones, err)
	}
}

func lengthOf[T any](list []T, err error) (int, error) { return len(list), err }
