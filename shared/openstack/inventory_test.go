package openstack

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestHostInventories: Placement is asked once for many hosts, and alone only for those without room. It was asked
// three times for each.
func TestHostInventories(t *testing.T) {
	t.Parallel()
	const (
		one = `"a":{"resources":{"VCPU":{"capacity":8,"used":2},"PCPU":{"capacity":4,"used":1},
			"MEMORY_MB":{"capacity":100,"used":50}},"traits":["Z","A"]}`
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
			s.answer("GET /placement/resource_providers/b/traits", 200, `{"traits":["B"]}`)
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
