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
		return domain.Node{Name: name, ServiceID: "id-" + name, Enabled: isEnabled, Status: domain.NodeUp}
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
			stored{node("a", true)}, hosts{host("a", true)}, fresh, nil, "", "reports",
		},
		"one is disabled": {
			stored{node("a", true), node("b", false)}, hosts{host("a", true), host("b", false)}, fresh, nil, "",
			"reports, service b",
		},
		"a disabled one was deleted": {
			stored{node("a", true), node("b", false)}, hosts{host("a", true)}, fresh, nil, "", "reports, service b",
		},
		"two are disabled": {
			stored{node("a", true), node("b", false), node("c", false)},
			hosts{host("a", true), host("b", false), host("c", false)}, fresh, nil, "", "services",
		},
		"all are disabled": {
			stored{node("a", false)}, hosts{host("a", false)}, fresh, nil, "", "services",
		},
		"one is new": {
			stored{node("a", true)}, hosts{host("a", true), host("b", true)}, fresh, nil, "", "reports, services",
		},
		"one was enabled": {
			stored{node("a", true), node("b", false)}, hosts{host("a", true), host("b", true)}, fresh, nil, "",
			"reports, services",
		},
		"one was disabled": {
			stored{node("a", true), node("b", true)}, hosts{host("a", true), host("b", false)}, fresh, nil, "",
			"reports, services",
		},
		"an agent's host besides": {
			stored{node("a", true), {Name: "metal", Status: domain.NodeUp}}, hosts{host("a", true)}, fresh, nil, "",
			"reports",
		},
		"the details are old": {
			stored{node("a", true)}, hosts{host("a", true)}, domain.NodeDetails{At: epoch.Add(-detailsEvery)}, nil, "",
			"services, hypervisors ",
		},
		"the details have another page": {
			stored{node("a", true)}, hosts{host("a", true)}, domain.NodeDetails{At: fresh.At, Marker: "m"}, nil, "n",
			"services, hypervisors m",
		},
		"a drain moves servers": {
			stored{node("a", true)}, hosts{host("a", true)}, fresh, []domain.DrainProgress{{Node: "a"}}, "",
			"services, hypervisors ",
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
					return r.Name == h.Name && r.ServiceID == h.ServiceID && r.IsEnabled == h.IsEnabled && r.IsUp
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
