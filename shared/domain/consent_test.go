package domain

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestTermsAreGranted as they are asked for, or less, and never more.
func TestTermsAreGranted(t *testing.T) {
	t.Parallel()
	number := func(n int) *int { return &n }
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	end := now.Add(time.Hour)
	asked := Terms{Actions: []Permission{MayStart, MayStop}, Quota: ConnectionQuota{Instances: number(3), VCPUs: number(0)}, Duration: time.Hour}
	until := asked
	until.Duration, until.ExpiresAt = 0, end
	all := Terms{Actions: asked.Actions, Quota: asked.Quota, ExpiresAt: end}
	for name, tc := range map[string]struct {
		asked, given, want Terms
		field              string
	}{
		"all":                   {asked: asked, want: all},
		"all until":             {asked: until, want: all},
		"fewer actions":         {asked: asked, given: Terms{Actions: []Permission{MayStop}}, want: Terms{Actions: []Permission{MayStop}, Quota: asked.Quota, ExpiresAt: end}},
		"other actions":         {asked: asked, given: Terms{Actions: []Permission{MayStop, MayDeploy}}, field: "actions"},
		"less":                  {asked: asked, given: Terms{Quota: ConnectionQuota{Instances: number(0)}}, want: Terms{Actions: asked.Actions, Quota: ConnectionQuota{Instances: number(0), VCPUs: number(0)}, ExpiresAt: end}},
		"more":                  {asked: asked, given: Terms{Quota: ConnectionQuota{Instances: number(4)}}, field: "quota.instances"},
		"more than nothing":     {asked: asked, given: Terms{Quota: ConnectionQuota{VCPUs: number(1)}}, field: "quota.vcpus"},
		"where none is bounded": {asked: asked, given: Terms{Quota: ConnectionQuota{RAMMB: number(1)}}, want: Terms{Actions: asked.Actions, Quota: ConnectionQuota{Instances: number(3), VCPUs: number(0), RAMMB: number(1)}, ExpiresAt: end}},
		"sooner":                {asked: asked, given: Terms{ExpiresAt: now.Add(time.Minute)}, want: Terms{Actions: asked.Actions, Quota: asked.Quota, ExpiresAt: now.Add(time.Minute)}},
		"just then":             {asked: until, given: Terms{ExpiresAt: end}, want: all},
		"later":                 {asked: asked, given: Terms{ExpiresAt: end.Add(time.Microsecond)}, field: "expires_at"},
		"later than until":      {asked: until, given: Terms{ExpiresAt: end.Add(time.Microsecond)}, field: "expires_at"},
	} {
		got, err := tc.asked.Grant(tc.given, now)
		if tc.field != "" {
			if e := apperr.As(err); e == nil || len(e.Fields) == 0 || e.Fields[0].Field != tc.field {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}
