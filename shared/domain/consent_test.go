package domain

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestTermsAreGranted as requested, or less, and never more.
func TestTermsAreGranted(t *testing.T) {
	t.Parallel()
	number := func(n int) *int { return &n }
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	end := now.Add(time.Hour)
	requested := Terms{
		Actions: []Permission{MayStart, MayStop}, Quota: ConnectionQuota{Instances: number(3), VCPUs: number(0)},
		Duration: time.Hour,
	}
	until := requested
	until.Duration, until.ExpiresAt = 0, end
	all := Terms{Actions: requested.Actions, Quota: requested.Quota, ExpiresAt: end}
	for name, tc := range map[string]struct {
		requested, given, want Terms
		field                  string
	}{
		"all":       {requested: requested, want: all},
		"all until": {requested: until, want: all},
		"fewer actions": {
			requested: requested, given: Terms{Actions: []Permission{MayStop}}, want: Terms{
				Actions: []Permission{MayStop}, Quota: requested.Quota, ExpiresAt: end,
			},
		},
		"other actions": {
			requested: requested, given: Terms{Actions: []Permission{MayStop, MayDeploy}}, field: "actions",
		},
		"less": {
			requested: requested, given: Terms{Quota: ConnectionQuota{Instances: number(0)}}, want: Terms{
				Actions: requested.Actions, ExpiresAt: end,
				Quota: ConnectionQuota{Instances: number(0), VCPUs: number(0)},
			},
		},
		"more": {
			requested: requested, given: Terms{Quota: ConnectionQuota{Instances: number(4)}}, field: "quota.instances",
		},
		"more than nothing": {
			requested: requested, given: Terms{Quota: ConnectionQuota{VCPUs: number(1)}}, field: "quota.vcpus",
		},
		"where none is bounded": {
			requested: requested, given: Terms{Quota: ConnectionQuota{RAMMB: number(1)}}, want: Terms{
				Actions: requested.Actions, Quota: ConnectionQuota{
					Instances: number(3), VCPUs: number(0), RAMMB: number(1),
				}, ExpiresAt: end,
			},
		},
		"sooner": {
			requested: requested, given: Terms{ExpiresAt: now.Add(time.Minute)}, want: Terms{
				Actions: requested.Actions, Quota: requested.Quota, ExpiresAt: now.Add(time.Minute),
			},
		},
		"just then": {requested: until, given: Terms{ExpiresAt: end}, want: all},
		"later": {
			requested: requested, given: Terms{ExpiresAt: end.Add(time.Microsecond)}, field: "expires_at",
		},
		"of the limits less": {
			requested: Terms{
				Actions:  requested.Actions,
				Limits:   ConnectionLimits{Flavors: []string{"a", "b"}, Regions: []string{"r"}},
				Duration: time.Hour,
			},
			given: Terms{Limits: ConnectionLimits{Flavors: []string{"b"}, Images: []string{"i"}}},
			want: Terms{
				Actions: requested.Actions, ExpiresAt: end,
				Limits: ConnectionLimits{Flavors: []string{"b"}, Images: []string{"i"}, Regions: []string{"r"}},
			},
		},
		"of the limits more": {
			requested: Terms{
				Actions: requested.Actions, Limits: ConnectionLimits{Networks: []string{"a"}}, Duration: time.Hour,
			},
			given: Terms{Limits: ConnectionLimits{Networks: []string{"a", "b"}}}, field: "limits.networks[1]",
		},
		"later than until": {requested: until, given: Terms{ExpiresAt: end.Add(time.Microsecond)}, field: "expires_at"},
	} {
		got, err := tc.requested.Grant(tc.given, now)
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

// TestWhatWidensLimits: a list that is absent, and a value that was not in it.
func TestWhatWidensLimits(t *testing.T) {
	t.Parallel()
	of := func(flavors ...string) Connection { return Connection{Limits: ConnectionLimits{Flavors: flavors}} }
	for name, tc := range map[string]struct {
		before, after   Connection
		differs, widens bool
	}{
		"the same":     {of("a"), of("a"), false, false},
		"none":         {of(), of(), false, false},
		"a new limit":  {of(), of("a"), true, false},
		"fewer":        {of("a", "b"), of("b"), true, false},
		"another":      {of("a"), of("b"), true, true},
		"more":         {of("a"), of("a", "b"), true, true},
		"not any more": {of("a"), of(), true, true},
	} {
		if got := tc.before.Changed(tc.after); (len(got) == 1 && got[0] == "limits") != tc.differs || !tc.differs &&
			len(got) > 0 {
			t.Errorf("%s: changed are %v", name, got)
		}
		if got := tc.before.Widens(tc.after); (len(got) == 1 && got[0] == "limits") != tc.widens {
			t.Errorf("%s: wider are %v", name, got)
		}
	}
}
