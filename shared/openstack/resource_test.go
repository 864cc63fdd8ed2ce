package openstack

import (
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

// TestPagesByMarkerOrOffset: of a link to the next page only its marker or offset is used, pages shift while they are
// read, and a service that gives the same page forever is not read forever.
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
		t.Errorf("it got %v", q)
	}
	secrets, err := session.Secrets(t.Context(), "")
	want := []domain.StoredSecret{{ID: "a", Name: "n", ContentType: "text/plain"}, {ID: "b"}}
	if diff := cmp.Diff(want, secrets); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if len(stranger.calls) != 0 {
		t.Error("a page was read from the host that the link names")
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

// TestOctaviaWhileItDeletes: a list that it fails once is read again; one that it always fails is not read forever.
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

// TestImagesGoesByTheMarker alone: the link's host and path are Glance's own, pages shift while they are read, and
// an image may lack anything.
func TestImagesGoesByTheMarker(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	stranger := newStub(t)
	s.pages("GET /image/v2/images", map[string]string{
		"":  `{"images":[{"id":"a","name":"one","status":"active","visibility":"public","size":5,"min_disk":1,"min_ram":2,"disk_format":"raw"},{"id":"b","name":null,"status":"queued","size":null,"min_disk":null}],"next":"/v2/images?marker=b&limit=2"}`,
		"b": `{"images":[{"id":"b"},{"id":"c"}],"next":"` + stranger.url + `/v2/images?limit=1&marker=c"}`,
		"c": `{"images":[{"id":"d"}],"next":"https://\u0000broken"}`,
	})
	got, err := s.session(t).Images(t.Context(), "one")
	want := []domain.Image{
		{
			ID: "a", Name: "one", Status: "active", Visibility: "public", SizeBytes: 5, MinDiskGB: 1, MinRAMMB: 2,
			DiskFormat: "raw",
		},
		{ID: "b", Status: "queued"},
		{ID: "c"},
		{ID: "d"},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for n, r := range s.to("/image/v2/images") {
		if q := r.URL.Query(); q.Get("name") != "eq:one" || q.Get("limit") != "1000" ||
			q.Get("marker") != []string{"", "b", "c"}[n] {
			t.Errorf("it got %s", r.URL)
		}
	}
	if len(stranger.calls) != 0 {
		t.Error("a page was read from the host that the link names")
	}
}

// TestNetworks: what is external is requested, because the attribute is hidden from plain members.
func TestNetworks(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	const in, out = `{"id":"in","name":"private","status":"ACTIVE","shared":false,"subnets":["s1","s2"]}`,
		`{"id":"out","name":null,"status":"ACTIVE","shared":true,"description":null}`
	all := `{"networks":[` + in + `,` + out + `]}`
	s.pages("GET /network/v2.0/networks", map[string]string{"": all})
	got, err := s.session(t).NetworkNames(t.Context())
	want := []domain.Network{
		{ID: "in", Name: "private", Status: "ACTIVE", Subnets: []domain.Subnet{}}, {
			ID: "out", Status: "ACTIVE", Shared: true, Subnets: []domain.Subnet{},
		},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if q := s.to("/network/v2.0/networks")[0].URL.Query(); q.Get("limit") != "1000" || q.Has("router:external") {
		t.Errorf("it got %v", q)
	}
}

// TestFlavors may have odd attributes.
func TestFlavors(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/flavors/detail", 200, `{"flavors":[
		{"id":"1","name":"tiny","vcpus":1,"ram":512,"disk":0,"swap":"","OS-FLV-EXT-DATA:ephemeral":0,"os-flavor-access:is_public":true,"rxtx_factor":1.0},
		{"id":"2","name":null,"vcpus":2,"ram":1024,"disk":5,"swap":512,"os-flavor-access:is_public":false,"extra_specs":null}]}`)
	got, err := s.session(t).Flavors(t.Context())
	want := []domain.Flavor{
		{ID: "1", Name: "tiny", VCPUs: 1, RAMMB: 512, Public: true}, {ID: "2", VCPUs: 2, RAMMB: 1024, DiskGB: 5},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// TestPagedByGophercloud are the lists that its pager reads: all pages, and nothing senseless is taken for a page.
func TestPagedByGophercloud(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.pages("GET /network/v2.0/networks", map[string]string{
		"": `{"networks":[{"id":"a"},{"id":"b"}],"networks_links":[{"rel":"next","href":"` + s.url +
			`/network/v2.0/networks?limit=1000&marker=b"}]}`,
		"b": `{"networks":[{"id":"c"}],"networks_links":[{"rel":"previous","href":"x"}]}`,
	})
	if got, err := s.session(t).NetworkNames(t.Context()); err != nil || len(got) != 3 {
		t.Errorf("got %v %v", got, err)
	}
	for name, body := range map[string]string{
		"HTML": "<html>canary</html>", "cut off": `{"flavors":[{"id":"canary"`,
		"another type": `{"flavors":"canary","networks":"canary","subnets":"canary","availabilityZoneInfo":"canary"}`,
		"a list":       `["canary"]`, "nothing": "",
	} {
		odd := newStub(t)
		odd.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
			if name == "HTML" {
				w.Header().Set("Content-Type", "text/html")
			}
			_, _ = w.Write([]byte(body))
		})
		session := odd.session(t)
		_, flavors := session.Flavors(t.Context())
		_, networks := session.Networks(t.Context())
		_, zones := session.Zones(t.Context())
		for kind, err := range map[string]error{"flavors": flavors, "networks": networks, "zones": zones} {
			if e := apperr.As(err); e.Code != apperr.BadGateway || strings.Contains(e.Message, "canary") ||
				strings.Contains(err.Error(), theToken) {
				t.Errorf("%s, %s: got %v", name, kind, err)
			}
		}
	}
}

// TestFreeAddresses, as TestRoom, has answers of Zed, cut short; what the real ones say is tested with a dry run of
// functions/launch.
func TestFreeAddresses(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /network/v2.0/network-ip-availabilities", 200, `{"network_ip_availabilities":[
		{"network_id":"n1","subnet_ip_availability":[
			{"ip_version":4,"used_ips":3,"total_ips":5},{"ip_version":4,"used_ips":1,"total_ips":2},{"ip_version":6,"used_ips":1,"total_ips":18446744073709551614}]},
		{"network_id":"n2","subnet_ip_availability":[{"ip_version":4,"used_ips":9,"total_ips":5}]}]}`)
	got, err := s.session(t).FreeAddresses(t.Context(), []string{"n1", "n2", "n3"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[int]float64{"n1": {4: 3, 6: 18446744073709551613}, "n2": {4: 0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if q := s.to("/network/v2.0/network-ip-availabilities")[0].URL.Query()["network_id"]; len(q) != 3 {
		t.Errorf("it got %v", q)
	}
}

func TestKeyPairCalls(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("POST /compute/os-keypairs", 200,
		`{"keypair":{"name":"k","fingerprint":"aa:bb","public_key":"ssh-ed25519 x"}}`)
	got, err := s.session(t).ImportKeyPair(t.Context(), "k", "ssh-ed25519 x")
	if err != nil || got.Fingerprint != "aa:bb" {
		t.Errorf("got %+v %v", got, err)
	}
	want := map[string]any{"name": "k", "public_key": "ssh-ed25519 x"}
	if diff := cmp.Diff(want, bodyOf(t, s.to("/compute/os-keypairs")[0])["keypair"]); diff != "" {
		t.Error(diff)
	}
	for status, want := range map[int]apperr.Code{202: "", 404: "", 403: apperr.Forbidden, 503: apperr.Unavailable} {
		s := newStub(t)
		s.answer("DELETE /compute/os-keypairs/k", status, "")
		if err := s.session(t).DeleteKeyPair(t.Context(), "k"); apperr.CodeOf(err) != want {
			t.Errorf("%d: got %v", status, err)
		}
	}
	for status, want := range map[int]apperr.Code{
		202: "", 404: apperr.NotFound, 409: apperr.Conflict, 503: apperr.Unavailable,
	} {
		s := newStub(t)
		s.answer("POST /compute/servers/s1/action", status, "")
		if err := s.session(t).StopServer(t.Context(), "s1"); apperr.CodeOf(err) != want {
			t.Errorf("stop, %d: got %v", status, err)
		}
	}
}

func TestPortsAreCounted(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /network/v2.0/ports", 200, `{"ports":[{"id":"a"},{"id":"b"}]}`)
	n, err := s.session(t).Ports(t.Context(), "s1")
	if n != 2 || err != nil || s.to("/network/v2.0/ports")[0].URL.RawQuery != "fields=id&device_id=s1" {
		t.Errorf("got %d %v", n, err)
	}
}
