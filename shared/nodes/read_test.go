package nodes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestTwoCalls has a row for what a poll reads: at most two calls, whatever the number of hosts, and in most polls one.
func TestTwoCalls(t *testing.T) {
	t.Parallel()
	node := func(name string, isEnabled bool) domain.Node {
		return domain.Node{Name: name, ServiceID: "id-" + name, Enabled: isEnabled, IsUp: true, Status: domain.NodeUp}
	}
	host := func(name string, isEnabled bool) domain.ComputeHost {
		return domain.ComputeHost{Name: name, ServiceID: "id-" + name, IsEnabled: isEnabled, IsUp: true}
	}
	type (
		stored []domain.Node
		hosts  []domain.ComputeHost
	)
	fresh := domain.NodeDetails{At: epoch.Add(-time.Minute)}
	for name, tc := range map[string]struct {
		stored  stored
		hosts   hosts
		details domain.NodeDetails
		open    []domain.DrainProgress
		next    string
		want    string
	}{
		"the first time": {hosts: hosts{host("a", true)}, want: "services, hypervisors "},
		"nothing is changed": {
			stored: stored{node("a", true)}, hosts: hosts{host("a", true)},
			details: fresh, want: "reports",
		},
		"one is disabled": {
			stored: stored{node("a", true), node("b", false)}, hosts: hosts{host("a", true), host("b", false)},
			details: fresh, want: "reports, service b",
		},
		"a disabled one was deleted": {
			stored: stored{node("a", true), node("b", false)}, hosts: hosts{host("a", true)},
			details: fresh, want: "reports, service b",
		},
		"two are disabled": {
			stored:  stored{node("a", true), node("b", false), node("c", false)},
			hosts:   hosts{host("a", true), host("b", false), host("c", false)},
			details: fresh, want: "services",
		},
		"all are disabled": {
			stored: stored{node("a", false)}, hosts: hosts{host("a", false)},
			details: fresh, want: "services",
		},
		"one is new": {
			stored: stored{node("a", true)}, hosts: hosts{host("a", true), host("b", true)},
			details: fresh, want: "reports, services",
		},
		"one was enabled": {
			stored: stored{node("a", true), node("b", false)}, hosts: hosts{host("a", true), host("b", true)},
			details: fresh, want: "reports, services",
		},
		"one was disabled": {
			stored: stored{node("a", true), node("b", true)}, hosts: hosts{host("a", true), host("b", false)},
			details: fresh, want: "reports, services",
		},
		"one is forced down": {
			stored:  stored{node("a", true), node("b", true)},
			hosts:   hosts{host("a", true), {Name: "b", ServiceID: "id-b", IsEnabled: true, ForcedDown: true}},
			details: fresh, want: "reports, services",
		},
		"one was not up before": {
			stored:  stored{node("a", true), {Name: "b", ServiceID: "id-b", Enabled: true}},
			hosts:   hosts{host("a", true), {Name: "b", ServiceID: "id-b", IsEnabled: true}},
			details: fresh, want: "services",
		},
		"an agent's host besides": {
			stored: stored{node("a", true), {Name: "metal", Status: domain.NodeUp}}, hosts: hosts{host("a", true)},
			details: fresh, want: "reports",
		},
		"the details are old": {
			stored: stored{node("a", true)}, hosts: hosts{host("a", true)},
			details: domain.NodeDetails{At: epoch.Add(-detailsEvery)}, want: "services, hypervisors ",
		},
		"the details have another page": {
			stored: stored{node("a", true)}, hosts: hosts{host("a", true)},
			details: domain.NodeDetails{At: fresh.At, Marker: "m"}, next: "n", want: "services, hypervisors m",
		},
		"a drain moves servers": {
			stored: stored{node("a", true)}, hosts: hosts{host("a", true)},
			details: fresh, open: []domain.DrainProgress{{Node: "a"}}, want: "services, hypervisors ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeWatch{nodes: tc.stored, hosts: tc.hosts, details: tc.details, open: tc.open, next: tc.next}
			if err := f.poll(t); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(f.calls, ", "); got != tc.want {
				t.Errorf("it calls %q, want %q", got, tc.want)
			}
			for _, h := range tc.hosts {
				if !slices.ContainsFunc(f.read, func(r domain.ComputeHost) bool {
					return r.Name == h.Name && r.ServiceID == h.ServiceID && r.IsEnabled == h.IsEnabled &&
						r.IsUp == h.IsUp && r.ForcedDown == h.ForcedDown
				}) {
					t.Errorf("%s is not as Nova has it: %+v", h.Name, f.read)
				}
			}
			if len(f.read) != len(tc.hosts) || f.details.Marker != tc.next {
				t.Errorf("read %+v, the next page is after %q", f.read, f.details.Marker)
			}
		})
	}
}
