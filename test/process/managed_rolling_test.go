package process_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongRollingUpdate: three servers get another flavor and are rolled back, with none and with one that may be
// missing: Nova never has fewer that are ACTIVE. In between others delete servers and an admin makes them ERROR, which
// poll-instances sees, and Nova has exactly what is declared after three ticks.
func TestLongRollingUpdate(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	for most := range 2 {
		t.Run(fmt.Sprintf("max_unavailable %d", most), func(t *testing.T) {
			d, tiny := newDeclarer(t, 2, nil), testkit.Sandbox(t).Flavor
			spread := func(made *domain.NewManaged) {
				made.Schedule.Affinity, made.Repair = "spread", domain.RepairAuto
			}
			is := func(count int, flavor string) func() string {
				return func() string { return d.isExactly(t, deployed, count, flavor) }
			}
			spec := func(count int, flavor string) domain.DeploymentSpec {
				s := deployment(t, count, flavor)
				s.MaxUnavailable = &most
				if most == 1 { // with none that may be missing, servers are replaced anyway
					s.Update = domain.UpdateReplace
				}
				return s
			}
			broken := map[string]any{"os-resetState": map[string]any{"state": "error"}}
			d.declare(t, spec(3, tiny), spread)
			d.within(t, "declared 3", is(3, tiny))
			if groups := d.ServerGroups(t); len(groups) != 1 || len(groups[0].Members) != 3 ||
				groups[0].Policies[0] != "soft-anti-affinity" {
				t.Errorf("the three servers should be spread by one group: %+v", groups)
			}

			fewest := d.watch(t)
			keeps := func(what string) {
				t.Helper()
				if n := fewest(); n < int64(3-most) {
					t.Errorf("%s: only %d of 3 servers were ACTIVE", what, n)
				}
			}
			d.declare(t, spec(3, "m1.small"), spread)
			d.within(t, "another flavor", is(3, "m1.small"))
			keeps("another flavor")

			testkit.Act(t, d.Servers(t)[0].ID, broken)
			d.within(t, "one made ERROR", is(3, "m1.small"))
			d.Delete(t, d.Servers(t)[0].ID)
			d.within(t, "one deleted by hand", is(3, "m1.small"))

			fewest()
			d.declare(t, spec(3, tiny), func(made *domain.NewManaged) {
				spread(made)
				made.Repeats = 1
			})
			d.within(t, "rolled back", is(3, tiny))
			keeps("rolled back")

			all := d.Servers(t)
			testkit.Act(t, all[0].ID, broken)
			d.Delete(t, all[1].ID)
			d.declare(t, spec(4, tiny), spread)
			d.within(t, "scaled to 4 with one in ERROR and one deleted", is(4, tiny))

			testkit.Act(t, d.Servers(t)[0].ID, broken)
			d.declare(t, spec(0, tiny), spread)
			d.within(t, "scaled to 0 with one in ERROR", is(0, ""))
			d.delete(t, domain.KindDeployment, deployed)
			d.within(t, "deleted", func() string {
				if n := testkit.Scalar[int](t, d.conn, "select count(*)::int from managed_projects"); n > 0 {
					return "its project is left"
				}
				return ""
			})
			if groups := d.ServerGroups(t); len(groups) > 0 {
				t.Errorf("server groups are left: %+v", groups)
			}
		})
	}
}

// watch counts the servers that are ACTIVE in Nova all the while, and returns the fewest since the last call.
func (d *declarer) watch(t *testing.T) (fewest func() int64) {
	t.Helper()
	var least atomic.Int64
	least.Store(1 << 30)
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	session := d.Session(t)
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			page, _, err := session.Servers(ctx, domain.ServerQuery{Limit: 1000})
			if err == nil {
				n := int64(0)
				for _, s := range page {
					if s.Status == "ACTIVE" && s.Task != "deleting" {
						n++
					}
				}
				if n < least.Load() {
					least.Store(n)
				}
			}
			time.Sleep(700 * time.Millisecond) // more often would take the time of Nova that the test waits for
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func() int64 { return least.Swap(1 << 30) }
}
