package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const held = "hold nova: 3 of 4 hosts of zone nova are not up, or are cordoned or drained automatically; the limit " +
	"is 1 (NODES_AUTO_SHARE, 20 %): no host of the zone is cordoned or drained automatically"

// zoneOf is a zone of n hosts with these settings. Those from the nth on, first, are as change makes them.
func zoneOf(n, first int, change func(*domain.Node, *domain.ComputeHost)) *fakeWatch {
	f := &fakeWatch{held: map[string]domain.HeldZone{}}
	for i := range n {
		name := fmt.Sprintf("%c", 'a'+i)
		host := domain.ComputeHost{Name: name, Zone: "nova", ServiceID: name, IsUp: true, IsEnabled: true}
		node := domain.Node{
			Name: name, Zone: "nova", Status: domain.NodeUp, StatusSince: epoch.Add(-24 * time.Hour),
			AutoCordonAfter: 10 * time.Minute, AutoDrainAfter: time.Hour,
		}
		if i >= first {
			change(&node, &host)
		}
		f.nodes, f.hosts = append(f.nodes, node), append(f.hosts, host)
	}
	return f
}

// notUp is a host that is down for two hours.
func notUp(n *domain.Node, h *domain.ComputeHost) {
	since := epoch.Add(-2 * time.Hour)
	n.Status, n.StatusSince, n.NotUpSince, h.IsUp = domain.NodeDown, since, since, false
}

// cordonedFor is a host that was cordoned automatically, and is up again for a shorter time.
func cordonedFor(cordoned, up time.Duration) func(*domain.Node, *domain.ComputeHost) {
	return func(n *domain.Node, h *domain.ComputeHost) {
		n.CordonedAt, n.StatusSince = epoch.Add(-cordoned), epoch.Add(-up)
		h.IsEnabled, h.DisabledReason = false, "cloudfn: not up since 2026-01-02T01:00:00Z"
		n.DisabledReason = h.DisabledReason
	}
}

// TestZoneOutage has a row for each state of a zone in which many hosts are due. All that were due were cordoned, and
// drained in the first poll that found them up.
func TestZoneOutage(t *testing.T) {
	t.Parallel()
	const hour, day = time.Hour, 24 * time.Hour
	cordoned := func(ago time.Duration) domain.HeldZone { return domain.HeldZone{Since: epoch.Add(-ago)} }
	for name, tc := range map[string]struct {
		zone  *fakeWatch
		share int
		held  domain.HeldZone
		open  []domain.DrainProgress
		want  string
	}{
		"three of four are off":              {zone: zoneOf(4, 1, notUp), want: held},
		"three of four are back immediately": {zone: zoneOf(4, 1, cordonedFor(2*hour, 0))},
		"three of four are back for long":    {zone: zoneOf(4, 1, cordonedFor(2*day, day)), want: held},
		"one of four is off": {
			zone: zoneOf(4, 3, notUp), want: "disable d: cloudfn: not up since 2026-01-02T01:04:05Z, cordoned d",
		},
		"one of four is back immediately":           {zone: zoneOf(4, 3, cordonedFor(2*hour, 0))},
		"one of four is back for long":              {zone: zoneOf(4, 3, cordonedFor(day, 2*hour)), want: "drain d"},
		"one of four is up for long, cordoned late": {zone: zoneOf(4, 3, cordonedFor(time.Minute, day))},
		"within a larger share": {
			zone: zoneOf(4, 2, notUp), share: 50,
			want: "disable c: cloudfn: not up since 2026-01-02T01:04:05Z, cordoned c, " +
				"disable d: cloudfn: not up since 2026-01-02T01:04:05Z, cordoned d",
		},
		"one drain at a time": {zone: zoneOf(4, 2, cordonedFor(day, 2*hour)), share: 50, want: "drain c"},
		"one is drained already": {
			zone: zoneOf(4, 2, cordonedFor(day, 2*hour)), share: 50,
			open: []domain.DrainProgress{{Node: "c", IsAutomatic: true}},
		},
		"an admin's drain runs": {
			zone: zoneOf(4, 3, cordonedFor(day, 2*hour)), open: []domain.DrainProgress{{Node: "a"}}, want: "drain d",
		},
		"an outage has just ended": {zone: zoneOf(4, 3, notUp), held: cordoned(hour), want: "free nova"},
		"an outage ended since": {
			zone: zoneOf(4, 3, notUp), held: domain.HeldZone{EndedAt: epoch.Add(-5 * time.Minute)},
		},
		"an outage ended long ago": {
			zone: zoneOf(4, 3, notUp), held: domain.HeldZone{EndedAt: epoch.Add(-11 * time.Minute)},
			want: "disable d: cloudfn: not up since 2026-01-02T01:04:05Z, cordoned d",
		},
		"a host that an admin has cordoned waits": {
			zone: zoneOf(4, 2, func(n *domain.Node, h *domain.ComputeHost) {
				if n.Name == "d" {
					notUp(n, h)
					return
				}
				cordonedFor(2*hour, day)(n, h)
				h.DisabledReason = "cloudfn: cordoned by alice"
				n.DisabledReason = h.DisabledReason
			}),
			want: "disable d: cloudfn: not up since 2026-01-02T01:04:05Z, cordoned d",
		},
		"hosts that an admin has disabled do not count": {
			zone: zoneOf(4, 3, func(n *domain.Node, h *domain.ComputeHost) {
				notUp(n, h)
				h.IsEnabled, h.DisabledReason = false, "to be scrapped"
			}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tc.zone
			f.share, f.open, f.held["nova"] = tc.share, tc.open, tc.held
			if err := f.poll(t); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(f.did, ", "); got != tc.want {
				t.Errorf("did %q, want %q", got, tc.want)
			}
		})
	}
}

// TestZoneComesBack: the hosts of a zone report again one after the other. None is cordoned.
func TestZoneComesBack(t *testing.T) {
	t.Parallel()
	f := zoneOf(20, 0, notUp)
	for i := range f.nodes {
		if err := f.poll(t); err != nil {
			t.Fatal(err)
		}
		f.hosts[i].IsUp = true
		f.nodes[i].Status, f.nodes[i].StatusSince, f.nodes[i].NotUpSince = domain.NodeUp, epoch, time.Time{}
	}
	if slices.ContainsFunc(f.did, func(did string) bool {
		return !strings.HasPrefix(did, "hold nova") && did != "free nova"
	}) {
		t.Errorf("did %q", f.did)
	}
	if !slices.Contains(f.did, "free nova") {
		t.Errorf("the zone is held still: %q", f.did)
	}
}

// TestManyStatusURLs: many hosts whose status URLs do not answer keep no poll from storing what it has read. They are
// requested in turns.
func TestManyStatusURLs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeWatch{hosts: []domain.ComputeHost{{Name: "up"}}}
		for i := range 300 {
			f.nodes = append(f.nodes, domain.Node{
				Name: fmt.Sprintf("n%03d", i), Status: domain.NodeSuspect, StatusURL: strconv.Itoa(i),
			})
		}
		f.nodes[299].AnsweredAt = epoch // it comes first
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		var mu sync.Mutex
		var requested []string
		watcher := f.watcher()
		watcher.Probe = func(ctx context.Context, url string) error {
			mu.Lock()
			requested = append(requested, url)
			mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(3 * time.Second):
			}
			return errors.New("no route")
		}
		began := time.Now()
		if _, err := watcher.Poll(ctx); err != nil || f.read == nil || len(f.limits.Answering) != 1 {
			t.Fatalf("not observed: %v, %v", f.limits, err)
		}
		if took := time.Since(began); took > 20*time.Second || !slices.Contains(requested, "299") {
			t.Errorf("it took %s for %d URLs", took, len(requested))
		}
		first := slices.Clone(f.probed)
		if len(first) < 50 || len(first) > 150 {
			t.Errorf("%d hosts count as probed", len(first))
		}
		for range 4 {
			f.details = domain.NodeDetails{}
			if _, err := watcher.Poll(ctx); err != nil {
				break // the time has ended
			}
		}
		if slices.Sort(f.probed); len(f.limits.Answering) != 0 || len(slices.Compact(f.probed)) <= len(first) {
			t.Errorf("the next polls request no others: %d, %v", len(f.probed), f.limits.Answering)
		}
	})
}
