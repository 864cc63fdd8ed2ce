package leases

import (
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestTenancy: a host that aggregates keep for projects is of use to these only.
func TestTenancy(t *testing.T) {
	t.Parallel()
	metadata := func(pairs ...string) domain.Aggregate {
		a := domain.Aggregate{Name: "tenants", Hosts: []string{"h1"}, Metadata: map[string]string{}}
		for n := 0; n < len(pairs); n += 2 {
			a.Metadata[pairs[n]] = pairs[n+1]
		}
		return a
	}
	elsewhere := metadata("filter_tenant_id", "p2")
	elsewhere.Hosts = []string{"h2"}
	const keeps = "filter_tenant_id keeps"
	for name, tc := range map[string]struct {
		all     []domain.Aggregate
		project string
		want    string // in the conflict
	}{
		"none":               {nil, "p1", ""},
		"another host's":     {[]domain.Aggregate{elsewhere}, "p1", ""},
		"another property":   {[]domain.Aggregate{metadata("ssd", "p2")}, "p1", ""},
		"an empty list":      {[]domain.Aggregate{metadata("filter_tenant_id", " ")}, "p1", ""},
		"of another project": {[]domain.Aggregate{metadata("filter_tenant_id", "p2")}, "p1", keeps},
		"of this project":    {[]domain.Aggregate{metadata("filter_tenant_id", "p2, p1")}, "p1", ""},
		"of this in another one": {
			[]domain.Aggregate{metadata("filter_tenant_id", "p2"), metadata("filter_tenant_id", "p1")}, "p1", "",
		},
		"with a suffix": {[]domain.Aggregate{metadata("filter_tenant_id3", "p2")}, "p1", "filter_tenant_id3 keeps"},
		"of this with a suffix": {
			[]domain.Aggregate{metadata("filter_tenant_id", "p2", "filter_tenant_id2", "p1")}, "p1", "",
		},
		"for every project": {[]domain.Aggregate{metadata("filter_tenant_id", "p1")}, "", keeps},
	} {
		err := CheckAggregates(tc.all, "h1", tc.project)
		if (err == nil) != (tc.want == "") || err != nil && (apperr.CodeOf(err) != apperr.Conflict ||
			!strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
