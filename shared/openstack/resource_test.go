package openstack

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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
			t.Errorf("it was asked %s", r.URL)
		}
	}
	if len(stranger.calls) != 0 {
		t.Error("a page was asked of the host that the link names")
	}
}

// TestNetworks: what is external is asked for, because the attribute is hidden from plain members.
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
		t.Errorf("it was asked %v", q)
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
