package managed

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestZones: members are spread over the zones with a node that has the labels, and wait without such a zone.
func TestZones(t *testing.T) {
	nodes := []domain.Node{
		{Name: "n1", Zone: "west", Labels: map[string]string{"disk": "ssd"}},
		{Name: "n2", Zone: "east", Labels: map[string]string{"disk": "ssd", "gpu": "1"}},
		{Name: "n3", Zone: "east", Labels: map[string]string{"disk": "ssd"}},
		{Name: "n4", Zone: "north"},
		{Name: "n5", Labels: map[string]string{"gpu": "1"}}, // Nova names no zone
	}
	for name, tc := range map[string]struct {
		rule  domain.ScheduleRule
		zones []string
		want  []string // of the members 0, 1, 2; nil: they wait
	}{
		"no rule": {want: []string{"", "", ""}},
		"a zone":  {rule: domain.ScheduleRule{Zone: "north"}, want: []string{"north", "north", "north"}},
		"a label": {
			rule:  domain.ScheduleRule{Labels: map[string]string{"disk": "ssd"}},
			zones: []string{"east", "west"}, want: []string{"east", "west", "east"},
		},
		"two labels": {
			rule:  domain.ScheduleRule{Labels: map[string]string{"disk": "ssd", "gpu": "1"}},
			zones: []string{"east"}, want: []string{"east", "east", "east"},
		},
		"no such label":           {rule: domain.ScheduleRule{Labels: map[string]string{"disk": "tape"}}},
		"a label without a value": {rule: domain.ScheduleRule{Labels: map[string]string{"disk": ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			in := Wanted{Resource: domain.Managed{Schedule: tc.rule}}
			if len(tc.rule.Labels) > 0 {
				in.Zones = zonesOf(nodes, tc.rule.Labels)
			}
			if diff := cmp.Diff(tc.zones, in.Zones); diff != "" {
				t.Errorf("zones (-want +got):\n%s", diff)
			}
			var got []string
			for in.Member.Ordinal = range 3 {
				zone, err := zoneFor(in)
				if _, waits := errors.AsType[WaitError](err); waits != (tc.want == nil) {
					t.Fatalf("member %d: %v", in.Member.Ordinal, err)
				} else if err == nil {
					got = append(got, zone)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("zones of the members (-want +got):\n%s", diff)
			}
		})
	}
}

// TestScheduled: the condition Scheduled is what is known of the nodes of the members.
func TestScheduled(t *testing.T) {
	ssd := map[string]string{"disk": "ssd"}
	nodes := []domain.Node{
		{Name: "fast", Labels: ssd}, {Name: "slow"},
	}
	for name, tc := range map[string]struct {
		labels  map[string]string
		members []string // their nodes
		reason  string
	}{
		"no rule":               {nil, []string{"slow", ""}, "AsDeclared"},
		"on such nodes":         {ssd, []string{"fast", "fast"}, "AsDeclared"},
		"no member":             {ssd, nil, "AsDeclared"},
		"not known yet":         {ssd, []string{"fast", ""}, "NodeUnknown"},
		"on another node":       {ssd, []string{"fast", "slow"}, "OtherNode"},
		"on a node that is new": {ssd, []string{"new"}, "OtherNode"},
	} {
		t.Run(name, func(t *testing.T) {
			m := domain.Managed{Schedule: domain.ScheduleRule{Labels: tc.labels}}
			for _, node := range tc.members {
				m.Members = append(m.Members, domain.Member{Node: node})
			}
			isMet, reason, message := scheduled(m, nodes)
			if isMet != (tc.reason == "AsDeclared") || reason != tc.reason || (message == "") != isMet {
				t.Errorf("%t %s %q, want %s", isMet, reason, message, tc.reason)
			}
		})
	}
}
