package nodes

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeWatch is a cloud and a database for hosts that a test cannot have: down for hours, or hidden.
type fakeWatch struct {
	nodes   []domain.Node
	hosts   []domain.ComputeHost
	last    map[string]domain.Drain
	err     error // of Nova's list
	limits  domain.NodeLimits
	did     []string
	details domain.NodeDetails
	next    string // marker of the next page of hypervisors
	open    []domain.DrainProgress
	calls   []string             // to Nova
	read    []domain.ComputeHost // as they are observed
	answers map[string]bool      // by status URL
	refuses map[string]bool      // to disable a host, by its service
	held    map[string]domain.HeldZone
	share   int
	probed  []string // hosts in the order in which they are stored as probed
}

func (f *fakeWatch) HostReports(context.Context) (reports []domain.ComputeHost, err error) {
	f.calls = append(f.calls, "reports")
	for _, h := range f.hosts {
		if h.IsEnabled {
			h.ServiceID, h.IsBrief, h.ForcedDown = "", true, false
			reports = append(reports, h)
		}
	}
	return reports, f.err
}

func (f *fakeWatch) ComputeServices(context.Context) ([]domain.ComputeHost, error) {
	f.calls = append(f.calls, "services")
	return slices.Clone(f.hosts), f.err
}

func (f *fakeWatch) ComputeService(_ context.Context, name string) (domain.ComputeHost, error) {
	f.calls = append(f.calls, "service "+name)
	for _, h := range f.hosts {
		if h.Name == name {
			return h, nil
		}
	}
	return domain.ComputeHost{}, apperr.New(apperr.NotFound, "no host")
}

func (f *fakeWatch) DescribeHosts(_ context.Context, hosts []domain.ComputeHost, marker string) (string, error) {
	f.calls = append(f.calls, "hypervisors "+marker)
	for i := range hosts {
		hosts[i].ServerIDs = []string{"on " + hosts[i].Name}
	}
	return f.next, nil
}

func (f *fakeWatch) Details(context.Context) (domain.NodeDetails, error) { return f.details, nil }

func (f *fakeWatch) SetDetails(_ context.Context, marker string) error {
	f.details = domain.NodeDetails{At: epoch, Marker: marker}
	return nil
}

func (f *fakeWatch) Open(context.Context) ([]domain.DrainProgress, error) { return f.open, nil }

func (f *fakeWatch) DisableService(_ context.Context, id, reason string) error {
	f.did = append(f.did, "disable "+id+": "+reason)
	if f.refuses[id] {
		return apperr.New(apperr.Forbidden, "no")
	}
	return nil
}

func (f *fakeWatch) All(context.Context) ([]domain.Node, error) { return f.nodes, nil }

func (f *fakeWatch) Observe(
	_ context.Context, hosts []domain.ComputeHost, limits domain.NodeLimits,
) ([]domain.Node, error) {
	f.limits, f.read = limits, hosts
	return nil, nil
}

func (f *fakeWatch) MonitorFailed(_ context.Context, reason string) error {
	f.did = append(f.did, "failed: "+reason)
	return nil
}

func (f *fakeWatch) HeldZones(context.Context) (map[string]domain.HeldZone, error) {
	return f.held, nil
}

func (f *fakeWatch) HoldZone(_ context.Context, zone, reason string) error {
	f.did = append(f.did, "hold "+zone+": "+reason)
	if f.held != nil {
		f.held[zone] = domain.HeldZone{Since: epoch}
	}
	return nil
}

func (f *fakeWatch) FreeZone(_ context.Context, zone string) error {
	f.did, f.held[zone] = append(f.did, "free "+zone), domain.HeldZone{EndedAt: epoch}
	return nil
}

func (f *fakeWatch) SetProbed(_ context.Context, answering, silent []string) error {
	f.probed = append(f.probed, slices.Concat(answering, silent)...)
	for i, n := range f.nodes {
		switch {
		case slices.Contains(answering, n.Name):
			f.nodes[i].ProbedAt, f.nodes[i].AnsweredAt = epoch, epoch
		case slices.Contains(silent, n.Name):
			f.nodes[i].ProbedAt, f.nodes[i].AnsweredAt = epoch, time.Time{}
		}
	}
	return nil
}

func (f *fakeWatch) MonitorWorks(context.Context) error { return nil }

func (f *fakeWatch) SetCordoned(_ context.Context, name string, on bool, _ string) (domain.Node, error) {
	if on {
		f.did = append(f.did, "cordoned "+name)
	}
	return domain.Node{}, nil
}

func (f *fakeWatch) Last(context.Context, ...string) (map[string]domain.Drain, error) {
	return f.last, nil
}

func (f *fakeWatch) Create(_ context.Context, d domain.Drain) (domain.Drain, bool, error) {
	if d.IsAutomatic {
		f.did = append(f.did, "drain "+d.Node)
	}
	return d, true, nil
}

func (f *fakeWatch) watcher() Watcher {
	return Watcher{
		Share: cmp.Or(f.share, 20),
		Nodes: f, Drains: f, Cloud: f, Suspect: time.Minute, Down: 2 * time.Minute, Parallel: 2,
		Now: func(context.Context) (time.Time, error) { return epoch, nil },
		Probe: func(_ context.Context, url string) error {
			if f.answers[url] {
				return nil
			}
			return errors.New("no answer")
		},
	}
}

func (f *fakeWatch) poll(t *testing.T) error {
	t.Helper()
	_, err := f.watcher().Poll(t.Context())
	return err
}

func with(n domain.Node, change func(*domain.Node)) domain.Node {
	change(&n)
	return n
}

// TestPolicies has a row for each reason to cordon or drain a host automatically, and for each not to.
func TestPolicies(t *testing.T) {
	t.Parallel()
	hour, other := time.Hour, domain.ComputeHost{Name: "b", IsUp: true, IsEnabled: true}
	long, short := epoch.Add(-2*hour), epoch.Add(-time.Minute)
	down := domain.Node{
		Status: domain.NodeDown, StatusSince: long, NotUpSince: long, AutoCordonAfter: hour, AutoDrainAfter: hour,
	}
	suspect := domain.Node{Status: domain.NodeSuspect, StatusSince: long, AutoDrainAfter: hour}
	cordoned := domain.Node{Status: domain.NodeUp, StatusSince: long, CordonedAt: long, AutoDrainAfter: hour}
	since := func(n domain.Node, at time.Time) domain.Node {
		n.StatusSince, n.NotUpSince = at, at
		return n
	}
	const reason = "disable id: cloudfn: suspect since 2026-01-02T01:04:05Z"
	for name, tc := range map[string]struct {
		node  domain.Node
		host  domain.ComputeHost
		other domain.ComputeHost
		pool  domain.PoolState // of the other one
		last  domain.Drain
		want  string
	}{
		"down for long": {
			node: down, host: domain.ComputeHost{IsEnabled: true}, other: other,
			want: "disable id: cloudfn: not up since 2026-01-02T01:04:05Z, cordoned a",
		},
		"down for short, and suspect before": {
			node: with(down, func(n *domain.Node) { n.StatusSince = short }), host: domain.ComputeHost{IsEnabled: true},
			other: other, want: "disable id: cloudfn: not up since 2026-01-02T01:04:05Z, cordoned a",
		},
		"suspect for long, and to be cordoned": {
			node: with(down, func(n *domain.Node) { n.Status, n.AutoDrainAfter = domain.NodeSuspect, 0 }),
			host: domain.ComputeHost{IsUp: true, IsEnabled: true}, other: other,
			want: "disable id: cloudfn: not up since 2026-01-02T01:04:05Z, cordoned a",
		},
		"down for long, and the other one is down, too": {
			node: down, host: domain.ComputeHost{IsEnabled: true},
			other: domain.ComputeHost{Name: "b", IsEnabled: true},
		},
		"down for long, and the other one is in another zone": {
			node: down, host: domain.ComputeHost{IsEnabled: true},
			other: domain.ComputeHost{Name: "b", Zone: "z", IsUp: true, IsEnabled: true},
		},
		"down, and disabled by an admin": {node: down, other: other},
		"down for short": {
			node: since(down, short), host: domain.ComputeHost{IsEnabled: true}, other: other,
		},
		"down, without a setting": {
			node: domain.Node{Status: domain.NodeDown, StatusSince: long}, host: domain.ComputeHost{IsEnabled: true},
		},
		"suspect for long": {
			node: suspect, host: domain.ComputeHost{IsUp: true, IsEnabled: true}, other: other,
			want: reason + ", cordoned a, drain a",
		},
		"suspect for short": {
			node: since(suspect, short), host: domain.ComputeHost{IsUp: true, IsEnabled: true}, other: other,
		},
		"suspect, and Nova shows it down": {node: suspect, host: domain.ComputeHost{IsEnabled: true}, other: other},
		"suspect, and the last one":       {node: suspect, host: domain.ComputeHost{IsUp: true, IsEnabled: true}},
		"suspect, and the other one is down": {
			node: suspect, host: domain.ComputeHost{IsUp: true, IsEnabled: true},
			other: domain.ComputeHost{Name: "b", IsEnabled: true},
		},
		"suspect, and the other one is reserved": {
			node: suspect, host: domain.ComputeHost{IsUp: true, IsEnabled: true}, other: other,
			pool: domain.NodeReservable,
		},
		"cordoned for long": {node: cordoned, host: domain.ComputeHost{IsUp: true}, want: "drain a"},
		"drained since": {
			node: cordoned, host: domain.ComputeHost{IsUp: true},
			last: domain.Drain{CreatedAt: short, Status: domain.DrainDone},
		},
		"drained before": {
			node: cordoned, host: domain.ComputeHost{IsUp: true}, want: "drain a",
			last: domain.Drain{CreatedAt: long.Add(-hour), Status: domain.DrainDone},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.node.Name, tc.host.Name, tc.host.ServiceID = "a", "a", "id"
			f := &fakeWatch{nodes: []domain.Node{tc.node}, hosts: []domain.ComputeHost{tc.host}}
			if tc.other.Name != "" {
				f.hosts = append(f.hosts, tc.other)
				f.nodes = append(f.nodes, domain.Node{Name: "b", Pool: tc.pool})
			}
			if tc.last.Status != "" {
				f.last = map[string]domain.Drain{"a": tc.last}
			}
			if err := f.poll(t); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(f.did, ", "); got != tc.want {
				t.Errorf("did %q, want %q", got, tc.want)
			}
		})
	}
}

// TestUnreadable reports that the hosts cannot be read, and does nothing to them.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	down := &fakeWatch{err: apperr.New(apperr.Unavailable, "nova is unavailable")}
	if err := down.poll(t); err == nil || !slices.Equal(down.did, []string{"failed: nova is unavailable"}) {
		t.Errorf("got %v, did %v", err, down.did)
	}
	empty := &fakeWatch{nodes: []domain.Node{{Name: "a", ServiceID: "id"}}}
	want := []string{"failed: Nova's list of compute services is empty"}
	if err := empty.poll(t); err == nil || !slices.Equal(empty.did, want) {
		t.Errorf("got %v, did %v", err, empty.did)
	}
	if err := new(fakeWatch).poll(t); err != nil {
		t.Errorf("a cloud without hosts: %v", err)
	}
}

// TestStatusURLs requests those of hosts that are not up. What they answer counts from the next poll on.
func TestStatusURLs(t *testing.T) {
	t.Parallel()
	f := &fakeWatch{
		answers: map[string]bool{"u": true, "s": true, "d": true},
		nodes: []domain.Node{
			{Name: "up", Status: domain.NodeUp, StatusURL: "u"},
			{Name: "suspect", Status: domain.NodeSuspect, StatusURL: "s"},
			{Name: "down", Status: domain.NodeDown, StatusURL: "d"},
			{Name: "none", Status: domain.NodeDown},
			{Name: "silent", Status: domain.NodeSuspect, StatusURL: "x"},
		},
		hosts: []domain.ComputeHost{{Name: "up"}},
	}
	if err := f.poll(t); err != nil || len(f.limits.Answering) > 0 {
		t.Errorf("what was not requested has answered: %+v %v", f.limits, err)
	}
	if err := f.poll(t); err != nil || !slices.Equal(f.limits.Answering, []string{"suspect", "down"}) ||
		!f.limits.AsOf.Equal(epoch) {
		t.Errorf("got %+v %v", f.limits, err)
	}
	f.nodes[1].AnsweredAt = epoch.Add(-answerFor - time.Second)
	if err := f.poll(t); err != nil || !slices.Equal(f.limits.Answering, []string{"down"}) {
		t.Errorf("an old answer: %+v %v", f.limits, err)
	}
}

// TestOneHostFails: a host that cannot be cordoned keeps no other from it, and the hosts count as read.
func TestOneHostFails(t *testing.T) {
	t.Parallel()
	f := &fakeWatch{
		share: 100, refuses: map[string]bool{"a": true},
		hosts: []domain.ComputeHost{{Name: "c", IsUp: true, IsEnabled: true}},
	}
	for _, name := range []string{"a", "b"} {
		f.nodes = append(f.nodes, domain.Node{
			Name: name, Status: domain.NodeDown, NotUpSince: epoch.Add(-time.Hour), AutoCordonAfter: time.Minute,
		})
		f.hosts = append(f.hosts, domain.ComputeHost{Name: name, ServiceID: name, IsEnabled: true})
	}
	if err := f.poll(t); err != nil || !slices.Contains(f.did, "cordoned b") || slices.Contains(f.did, "cordoned a") {
		t.Errorf("did %q: %v", f.did, err)
	}
}

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
