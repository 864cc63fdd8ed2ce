package managed

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
		rule  domain.Schedule
		zones []string
		want  []string // of the members 0, 1, 2; nil: they wait
	}{
		"no rule": {want: []string{"", "", ""}},
		"a zone":  {rule: domain.Schedule{Zone: "north"}, want: []string{"north", "north", "north"}},
		"a label": {
			rule:  domain.Schedule{Labels: map[string]string{"disk": "ssd"}},
			zones: []string{"east", "west"}, want: []string{"east", "west", "east"},
		},
		"two labels": {
			rule:  domain.Schedule{Labels: map[string]string{"disk": "ssd", "gpu": "1"}},
			zones: []string{"east"}, want: []string{"east", "east", "east"},
		},
		"no such label":           {rule: domain.Schedule{Labels: map[string]string{"disk": "tape"}}},
		"a label without a value": {rule: domain.Schedule{Labels: map[string]string{"disk": ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			in := Desired{Resource: domain.Managed{Schedule: tc.rule}}
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
			m := &resource{Managed: domain.Managed{Schedule: domain.Schedule{Labels: tc.labels}}}
			for _, node := range tc.members {
				m.Members = append(m.Members, domain.Member{Node: node})
			}
			isMet, reason, message := m.scheduled(nodes)
			if isMet != (tc.reason == "AsDeclared") || reason != tc.reason || (message == "") != isMet {
				t.Errorf("%t %s %q, want %s", isMet, reason, message, tc.reason)
			}
		})
	}
}

// TestScheduledServers: a zone or an affinity that the servers do not meet is shown, with how many do not.
func TestScheduledServers(t *testing.T) {
	two := []domain.Node{
		{Name: "n1", Zone: "west", Status: domain.NodeUp, Enabled: true},
		{Name: "n2", Zone: "west", Status: domain.NodeUp, Enabled: true},
		{Name: "down", Zone: "west", Status: domain.NodeUnknown, Enabled: true},
		{Name: "cordoned", Zone: "west", Status: domain.NodeUp},
		{Name: "reserved", Zone: "west", Status: domain.NodeUp, Enabled: true, Pool: domain.NodeReservable},
		{Name: "elsewhere", Zone: "east", Status: domain.NodeUp, Enabled: true},
	}
	anywhere := domain.Schedule{Affinity: "spread"}
	west := func(affinity string) domain.Schedule {
		return domain.Schedule{Zone: "west", Affinity: affinity}
	}
	for name, tc := range map[string]struct {
		rule  domain.Schedule
		nodes []domain.Node
		hosts string // of the servers, a letter each; "-" = none yet, a capital is in another zone
		want  string
	}{
		"any":                       {domain.Schedule{}, two, "aaA", ""},
		"the zone":                  {west(""), two, "aab", ""},
		"another zone":              {west(""), two, "aAB-", "OtherZone: 2 of 3 servers are in another zone than west"},
		"spread":                    {west("spread"), two, "aabb", ""},
		"spread but for one":        {west("spread"), two, "aaab", "SharedHost: 3 of 4 servers share a host"},
		"on one host":               {west("spread"), two, "aa", "SharedHost: 2 of 2 servers share a host"},
		"more nodes than servers":   {anywhere, two, "abb", "SharedHost: 2 of 3 servers share a host"},
		"nodes that are not known":  {west("spread"), nil, "abb", "SharedHost: 2 of 3 servers share a host"},
		"one each":                  {west("spread"), nil, "ab-", ""},
		"not placed yet":            {west("spread"), nil, "---", ""},
		"packed":                    {west("pack"), two, "aaa", ""},
		"packed, but for the third": {west("pack"), two, "aab", "SeveralHosts: 3 servers run on 2 hosts"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &resource{Managed: domain.Managed{Kind: domain.KindDeployment, Schedule: tc.rule}}
			for _, host := range tc.hosts {
				server := domain.Server{Zone: "west", HostID: strings.ToLower(string(host))}
				if server.HostID != string(host) {
					server.Zone = "east"
				}
				if host == '-' {
					server = domain.Server{}
				}
				m.members = append(m.members, observed{isFound: true, object: Object{Raw: server}})
			}
			isMet, reason, message := m.scheduled(tc.nodes)
			if got := reason + ": " + message; isMet != (tc.want == "") || !isMet && got != tc.want {
				t.Errorf("%t %q, want %q", isMet, got, tc.want)
			}
		})
	}
}

// TestOneByOne: servers of a deployment with an affinity are made one after the other, because Nova's scheduler does
// not see those that build.
func TestOneByOne(t *testing.T) {
	for _, affinity := range []string{"", "spread", "pack"} {
		m := &resource{Managed: domain.Managed{
			Kind: domain.KindDeployment, Spec: []byte(`{"count": 4}`), Schedule: domain.Schedule{Affinity: affinity},
		}}
		var all []observed
		most, passes := 0, 0
		for ; passes < 20; passes++ {
			p := decide(m.target(), all, testNow)
			if p.isMoving = p.isMoving || len(p.steps) > 0; !p.isMoving {
				break
			}
			all = simulate(all, p)
			building := 0
			for _, s := range all {
				if s.object.State == ObjectWorking {
					building++
				}
			}
			most = max(most, building)
		}
		if want := map[bool]int{true: 4, false: 1}[affinity == ""]; most != want || working(all) != 4 {
			t.Errorf("%q: up to %d build at a time, want %d; %d work after %d passes", affinity, most, want,
				working(all), passes)
		}
	}
	stuck := member(0, status(domain.MemberCreating), state(ObjectWorking))
	stuck.object.ChangedAt = testNow.Add(-time.Hour)
	to := changed(of(2, 1), func(t *target) { t.oneByOne = true })
	waiting := member(0, status(domain.MemberCreating), absent, pausing)
	waiting.member.Reason, waiting.member.IsWaiting = "there is no image", true
	unanswered := member(0, status(domain.MemberCreating), absent, pausing, requested)
	unanswered.member.UpdatedAt = testNow.Add(-time.Second)
	building := member(0, status(domain.MemberCreating), state(ObjectWorking), pausing)
	building.object.ChangedAt = testNow.Add(-time.Second)
	for name, one := range map[string]observed{"one without an answer": unanswered, "one that builds": building} {
		if got := stepsOf(decide(to, []observed{one}, testNow)); got != "" {
			t.Errorf("beside %s: %q", name, got)
		}
	}
	for name, one := range map[string]observed{
		"one that builds without end": stuck,
		"one in ERROR":                member(0, status(domain.MemberError), state(ObjectError), pausing),
		"one that waits":              waiting,
	} {
		if got := stepsOf(decide(to, []observed{one}, testNow)); got != "create 1" {
			t.Errorf("beside %s: %q", name, got)
		}
	}
}

// hanging is a Nova that answers to no call about server groups until the context ends.
type hanging struct{ Cloud }

func (hanging) EnsureServerGroup(ctx context.Context, _, _ string) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

// grouping counts the server groups that it makes.
type grouping struct {
	Cloud

	made int
}

func (g *grouping) EnsureServerGroup(context.Context, string, string) (string, error) {
	g.made++
	return "group", nil
}

// TestServerGroupsOfProjects: a Nova that hangs for one project keeps no server of another one waiting. Servers that
// are made concurrently get one group.
func TestServerGroupsOfProjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := domain.Managed{Kind: domain.KindDeployment, Schedule: domain.Schedule{Affinity: "spread"}}
		session := func(c Cloud) Session { return Session{Cloud: c, lists: &lists{}} }
		ctx, cancel := context.WithCancel(t.Context())
		slow, nova := session(hanging{}), &grouping{}
		go func() { _, _ = slow.serverGroup(ctx, m) }()
		synctest.Wait()
		fast := session(nova)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if id, err := fast.serverGroup(ctx, m); id != "group" || err != nil {
					t.Errorf("it is %q: %v", id, err)
				}
			})
		}
		all.Wait()
		cancel()
		if nova.made != 1 {
			t.Errorf("%d groups are made", nova.made)
		}
	})
}
