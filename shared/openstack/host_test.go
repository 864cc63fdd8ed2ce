package openstack

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestHostsOfACellThatIsDown: Nova shows their names at 2.69 and later; before it left them out, as if deleted.
func TestHostsOfACellThatIsDown(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/{$}", 200, `{"version":{"id":"v2.1","status":"CURRENT","min_version":"2.1","version":"2.93"}}`)
	s.answer("GET /compute/os-services", 200, `{"services":[
		{"id":"s","binary":"nova-compute","host":"a","zone":"nova","status":"enabled","state":"up"},
		{"binary":"nova-compute","host":"b","status":"UNKNOWN"}]}`)
	s.answer("GET /compute/os-hypervisors/detail", 200, `{"hypervisors":[{"id":"h","service":{"host":"a"}}]}`)
	hosts, err := s.session(t).ComputeHosts(t.Context())
	if err != nil || len(hosts) != 2 || hosts[0].CellDown || !hosts[1].CellDown || hosts[1].IsUp || hosts[1].IsEnabled {
		t.Errorf("got %+v: %v", hosts, err)
	}
	if calls := s.to("/compute/os-services"); len(calls) != 1 ||
		calls[0].Header.Get("OpenStack-API-Version") != "compute 2.69" {
		t.Errorf("%d calls: %v", len(calls), calls[0].Header)
	}
}

// TestHostReports leaves out disabled hosts, those of a zone where all are, and other services.
func TestHostReports(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/os-availability-zone/detail", 200, `{"availabilityZoneInfo":[
		{"zoneName":"internal","hosts":{"control":{"nova-conductor":{"available":true,"active":true,"updated_at":null}}}},
		{"zoneName":"nova","hosts":{"a":{"nova-compute":{
			"available":false,"active":true,"updated_at":"2026-01-02T03:04:05.000000"}}}},
		{"zoneName":"closed","hosts":null}]}`)
	hosts, err := s.session(t).HostReports(t.Context())
	if err != nil || len(hosts) != 1 || hosts[0].Name != "a" || hosts[0].Zone != "nova" || hosts[0].IsUp ||
		!hosts[0].IsEnabled || !hosts[0].IsBrief || hosts[0].SeenAt.Format("15:04:05") != "03:04:05" {
		t.Errorf("got %+v: %v", hosts, err)
	}
}

// TestDescribeHosts reads one page in one call, however many there are, and begins again when its marker was deleted.
func TestDescribeHosts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status  int
		answer  string
		marker  string
		next    string
		servers []int // on a and b; -1 = not read
	}{
		"a page": {
			status: 200, next: "h2", servers: []int{2, -1},
			answer: `{"hypervisors":[{"id":"h1","service":{"host":"a"},"servers":[{"uuid":"1"},{"uuid":"2"}]},
				{"id":"h2","service":{"host":"a"},"servers":[{"uuid":"2"}]}],"hypervisors_links":[{"rel":"next"}]}`,
		},
		"the next one": {
			status: 200, marker: "h2", next: "h3", servers: []int{-1, 0},
			answer: `{"hypervisors":[{"id":"h3","service":{"host":"b"}}]}`,
		},
		"after the last one": {status: 200, answer: `{"hypervisors":[]}`, marker: "h3", servers: []int{-1, -1}},
		"its marker was deleted": {
			status: 400, answer: `{"badRequest":{"message":"Marker not found"}}`, marker: "h9", servers: []int{-1, -1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /compute/os-hypervisors/detail", tc.status, tc.answer)
			hosts := []domain.ComputeHost{
				{Name: "a", IsBrief: true, Attributes: map[string]string{}},
				{Name: "b", IsBrief: true, Attributes: map[string]string{}},
			}
			next, err := s.session(t).DescribeHosts(t.Context(), hosts, tc.marker)
			var got []int
			for _, h := range hosts {
				n := h.Servers
				if h.IsBrief {
					n = -1
				}
				got = append(got, n)
			}
			calls := s.to("/compute/os-hypervisors/detail")
			if err != nil || next != tc.next || !slices.Equal(got, tc.servers) || len(calls) != 1 ||
				calls[0].URL.Query().Get("marker") != tc.marker || calls[0].URL.Query().Get("limit") != "1000" {
				t.Errorf("got %v, the next page is after %q, %d calls: %v", got, next, len(calls), err)
			}
		})
	}
}

// TestHostInventories: Placement is read once for many hosts, and alone only for those without room. It was read
// three times for each. The traits that isolate hosts are left out.
func TestHostInventories(t *testing.T) {
	t.Parallel()
	const (
		one = `"a":{"resources":{"VCPU":{"capacity":8,"used":2},"PCPU":{"capacity":4,"used":1},
			"MEMORY_MB":{"capacity":100,"used":50}},"traits":["Z","CUSTOM_CLOUDFN_POOL_1","A"]}`
		full = `{"inventories":{"VCPU":{"total":3,"reserved":1,"allocation_ratio":1.5},
			"MEMORY_MB":{"total":10,"allocation_ratio":1},"DISK_GB":{"total":7,"allocation_ratio":1}}}`
	)
	a := domain.ComputeHost{
		Name: "a", ProviderID: "a", VCPUs: 12, UsedVCPUs: 3, RAMMB: 100, UsedRAMMB: 50, DiskGB: 9,
		Traits: []string{"A", "Z"},
	}
	b := domain.ComputeHost{
		Name: "b", ProviderID: "b", VCPUs: 3, UsedVCPUs: 3, RAMMB: 10, UsedRAMMB: 10, DiskGB: 7, UsedDiskGB: 1,
		Traits: []string{"B"},
	}
	bare := domain.ComputeHost{Name: "c", VCPUs: 1}
	for name, tc := range map[string]struct {
		status int
		hosts  []string
		calls  int
	}{
		"of several":                 {200, []string{"a", "b", "c"}, 1 + 3},
		"all have room":              {200, []string{"a", "a"}, 1},
		"of one":                     {200, []string{"b"}, 3},
		"an old Placement":           {406, []string{"b", "b"}, 1 + 2*3},
		"a host without a provider":  {200, []string{"c"}, 0},
		"none":                       {200, nil, 0},
		"several without a provider": {200, []string{"c", "c"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			session := s.session(t)
			list := strings.TrimSuffix(strings.TrimPrefix(s.catalog("placement"), `{"catalog":`), "}")
			session.cloud.catalogs.Add("p1", catalogOf(t, list))
			s.answer("GET /placement/allocation_candidates", tc.status, `{"provider_summaries":{`+one+`}}`)
			s.answer("GET /placement/resource_providers/b/inventories", 200, full)
			s.answer("GET /placement/resource_providers/b/usages", 200,
				`{"usages":{"VCPU":3,"MEMORY_MB":10,"DISK_GB":1}}`)
			s.answer("GET /placement/resource_providers/b/traits", 200, `{"traits":["CUSTOM_CLOUDFN_POOL_1","B"]}`)
			var hosts, want []domain.ComputeHost
			for _, name := range tc.hosts {
				whole := map[string]domain.ComputeHost{"a": a, "b": b, "c": bare}[name]
				before := domain.ComputeHost{Name: name, ProviderID: whole.ProviderID, VCPUs: 1, DiskGB: 9}
				if name != "a" {
					before.DiskGB = 0
				}
				hosts, want = append(hosts, before), append(want, whole)
			}
			if err := session.HostInventories(t.Context(), hosts); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, hosts); diff != "" {
				t.Error(diff)
			}
			calls := 0
			for _, r := range s.calls {
				if strings.HasPrefix(r.URL.Path, "/placement/") {
					calls++
				}
			}
			if calls != tc.calls {
				t.Errorf("%d calls, want %d", calls, tc.calls)
			}
		})
	}
}

// TestProbeThatAnotherDeletes: of two self-tests of a host at the same time one may delete the other's server.
func TestProbeThatAnotherDeletes(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("POST /compute/servers", 202, `{"server": {"id": "s1"}}`)
	s.answer("GET /compute/servers/s1", 404, `{"itemNotFound": {"code": 404, "message": "Instance s1 is unknown."}}`)
	_, err := s.session(t).probe(t.Context(), "compute-3", "f", "i")
	if apperr.CodeOf(err) != apperr.Conflict || !strings.Contains(err.Error(), "another self-test") {
		t.Errorf("got %v", err)
	}
}

func TestRoom(t *testing.T) {
	t.Parallel()
	const hosts = `{"provider_summaries":{
		"a":{"resources":{"VCPU":{"capacity":10,"used":3},"MEMORY_MB":{"capacity":1000,"used":0},"DISK_GB":{"capacity":50,"used":1}}},
		"b":{"resources":{"VCPU":{"capacity":10,"used":10},"MEMORY_MB":{"capacity":1000,"used":0}}},
		"c":{"resources":{"VCPU":{"capacity":4,"used":0},"MEMORY_MB":{"capacity":300,"used":400}}},
		"d":{"resources":{"VCPU":{"capacity":4,"used":0},"MEMORY_MB":{"capacity":300,"used":0}}},
		"storage":{"resources":{"DISK_GB":{"capacity":5000,"used":0}}}}}`
	flavor := domain.Flavor{ID: "f", VCPUs: 2, RAMMB: 100, DiskGB: 10}
	for name, tc := range map[string]struct {
		specs  string
		status int
		want   int
		code   apperr.Code
	}{
		"plain":                 {`{"extra_specs":{"hw:mem_page_size":"large","trait:X":"required"}}`, 200, 3 + 2, ""},
		"other resources":       {`{"extra_specs":{"resources:CUSTOM_METAL":"1"}}`, 200, 0, apperr.Unsupported},
		"numbered ones":         {`{"extra_specs":{"resources1:VGPU":"1"}}`, 200, 0, apperr.Unsupported},
		"dedicated CPUs":        {`{"extra_specs":{"hw:cpu_policy":"dedicated"}}`, 200, 0, apperr.Unsupported},
		"policy says no":        {`{"extra_specs":{}}`, 403, 0, apperr.Forbidden},
		"no such flavor":        {``, 200, 0, apperr.NotFound},
		"placement unavailable": {`{"extra_specs":{}}`, 503, 0, apperr.Unavailable},
		"a senseless answer":    {`{"extra_specs":{}}`, 418, 0, apperr.BadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			session := s.session(t)
			list := strings.TrimSuffix(strings.TrimPrefix(s.catalog("compute", "placement"), `{"catalog":`), "}")
			session.cloud.catalogs.Add("p1", catalogOf(t, list))
			if tc.specs != "" {
				s.answer("GET /compute/flavors/f/os-extra_specs", 200, tc.specs)
			}
			s.answer("GET /placement/allocation_candidates", tc.status, hosts)
			got, err := session.Room(t.Context(), flavor)
			if got != tc.want || apperr.CodeOf(err) != tc.code {
				t.Errorf("got %d %v, want %d %s", got, err, tc.want, tc.code)
			}
			for _, call := range s.to("/placement/allocation_candidates") {
				if v := call.Header.Get("OpenStack-API-Version"); v != "placement "+placementSummaries {
					t.Errorf("the version is %q", v)
				}
			}
		})
	}
	// A cloud without Placement in its catalog.
	s := newStub(t)
	s.answer("GET /compute/flavors/f/os-extra_specs", 200, `{"extra_specs":{}}`)
	if _, err := s.session(t).Room(t.Context(), flavor); apperr.CodeOf(err) != apperr.Unsupported {
		t.Errorf("without placement: %v", err)
	}
}
