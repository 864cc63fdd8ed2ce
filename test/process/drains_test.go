package process_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongDrainTwice moves 20 servers of all sorts off a host, while its process is killed twice. What can move has
// moved once, as it was before; the rest is listed with the reason. Then a drain back is cancelled, and another one
// ends because somebody lets servers onto the host again.
func TestLongDrainTwice(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	d := newDrainer(t)
	p := testkit.NewProject(t)
	names := d.sorts(t, p.ServersOn(t, d.from, "drained", 20))

	id := d.drain(t, d.from, 4)
	d.kill(t, 12)
	d.kill(t, 25)
	done := d.ends(t, id)
	moved, left, skipped := done.Counts()
	if done.Status != domain.DrainDone || moved != 19 || left != 0 || skipped != 1 {
		t.Errorf("the drain is %s (%s): %d moved, %d are left, %d skipped", done.Status, done.Reason, moved, left,
			skipped)
	}
	for _, s := range done.Servers {
		want := domain.DrainMoved
		if s.ServerID == names["error"] {
			want = domain.DrainSkipped
		}
		if s.Status != want || want == domain.DrainMoved && s.Target != d.to || want == domain.DrainSkipped &&
			s.Reason == "" {
			t.Errorf("%+v", s)
		}
		if n := migrations(t, s.ServerID, d.from); n > 1 || n == 0 && want == domain.DrainMoved {
			t.Errorf("server %s was migrated %d times", s.Name, n)
		}
	}
	d.unchanged(t, names)
	if got := d.events(t, d.from); got != "running  done 19/0/1" {
		t.Errorf("its events are %q", got)
	}
	if service, err := d.admin.ComputeService(t.Context(), d.from); err != nil || service.IsEnabled {
		t.Errorf("after the drain the host is enabled: %+v %v", service, err)
	}

	d.post(t, d.from, "uncordon", "{}", http.StatusOK)
	d.cancelled(t)
	d.uncordoned(t)
}

// sorts makes of 20 servers 8 that are stopped, one of them locked, one that is paused, one in ERROR, and 10 that run,
// one of them locked. It returns the ids of the special ones.
func (d *drainer) sorts(t *testing.T, servers []domain.Server) map[string]string {
	t.Helper()
	slices.SortFunc(servers, func(a, b domain.Server) int { return a.CreatedAt.Compare(b.CreatedAt) })
	special := map[string]string{
		"paused": servers[8].ID, "error": servers[9].ID, "locked": servers[10].ID, "locked, stopped": servers[0].ID,
	}
	for _, s := range servers[:8] {
		testkit.Act(t, s.ID, map[string]any{"os-stop": nil})
	}
	testkit.Act(t, special["paused"], map[string]any{"pause": nil})
	testkit.Act(t, special["error"], map[string]any{"os-resetState": map[string]any{"state": "error"}})
	testkit.Act(t, special["locked"], map[string]any{"lock": nil})
	testkit.Eventually(t, 2*time.Minute, "8 are stopped and one is paused", func() bool {
		time.Sleep(time.Second)
		return d.count(t, d.from) == "ACTIVE 10, ERROR 1, PAUSED 1, SHUTOFF 8"
	})
	testkit.Act(t, special["locked, stopped"], map[string]any{"lock": nil})
	return special
}

// count says how many servers of each status are on a host.
func (d *drainer) count(t *testing.T, host string) string {
	t.Helper()
	count := map[string]int{}
	for _, s := range d.on(t, host) {
		if s.Task == "" {
			count[s.Status]++
		}
	}
	var texts []string
	for _, status := range slices.Sorted(maps.Keys(count)) {
		texts = append(texts, fmt.Sprintf("%s %d", status, count[status]))
	}
	return strings.Join(texts, ", ")
}

// unchanged checks that the servers have the status on the other host that they had on the first one.
func (d *drainer) unchanged(t *testing.T, special map[string]string) {
	t.Helper()
	if got := d.count(t, d.from); got != "ERROR 1" {
		t.Errorf("on %s are %s", d.from, got)
	}
	if got := d.count(t, d.to); got != "ACTIVE 10, PAUSED 1, SHUTOFF 8" {
		t.Errorf("on %s are %s", d.to, got)
	}
	for name, id := range special {
		s, err := d.admin.Server(t.Context(), id) // a list of Nova 2.1 shows no locks
		if err != nil || s.Locked != strings.HasPrefix(name, "locked") || name == "paused" && s.Status != "PAUSED" {
			t.Errorf("the server %s is %s, locked %t: %v", name, s.Status, s.Locked, err)
		}
	}
}

// cancelled drains the other host, and cancels it while servers move: these are followed, others stay.
func (d *drainer) cancelled(t *testing.T) {
	t.Helper()
	id := d.drain(t, d.to, 2)
	testkit.Eventually(t, time.Minute, "servers move", func() bool {
		d.tick()
		return slices.ContainsFunc(d.get(t, id).Servers, func(s domain.DrainServer) bool {
			return s.Status == domain.DrainMigrating
		})
	})
	d.post(t, d.to, "uncordon", "{}", http.StatusConflict)
	d.post(t, d.to, "cancel-drain", "{}", http.StatusAccepted)
	over := d.ends(t, id)
	moved, left, skipped := over.Counts()
	if over.Status != domain.DrainCancelled || moved == 0 || left < 10 || skipped != 0 {
		t.Errorf("the drain is %s: %d moved, %d are left, %d skipped", over.Status, moved, left, skipped)
	}
	if on := len(d.on(t, d.to)); on != left {
		t.Errorf("%d servers are on %s, and %d are left", on, d.to, left)
	}
	if got := d.events(t, d.to); got != fmt.Sprintf("running  cancelled %d/%d/0", moved, left) {
		t.Errorf("its events are %q", got)
	}
}

// uncordoned drains a host that another admin has cordoned, whose word stays, and onto which somebody then lets servers
// again: the drain fails.
func (d *drainer) uncordoned(t *testing.T) {
	t.Helper()
	id := d.drain(t, d.to, 1)
	d.cordon(t, d.to, "maintenance of another admin")
	testkit.Eventually(t, time.Minute, "servers move", func() bool {
		d.tick()
		moved, _, _ := d.get(t, id).Counts()
		return moved > 0
	})
	if service, err := d.admin.ComputeService(t.Context(), d.to); err != nil ||
		service.DisabledReason != "maintenance of another admin" {
		t.Errorf("the host's reason is %q: %v", service.DisabledReason, err)
	}
	d.post(t, d.to, "uncordon", "{}", http.StatusConflict)
	d.enable(t, d.to)
	over := d.ends(t, id)
	if over.Status != domain.DrainFailed || over.Reason != "the host is not cordoned any more" {
		t.Errorf("the drain is %s: %s", over.Status, over.Reason)
	}
	d.cordon(t, d.to, "maintenance of another admin")
	d.post(t, d.to, "uncordon", "{}", http.StatusConflict)
	if service, err := d.admin.ComputeService(t.Context(), d.to); err != nil || service.IsEnabled {
		t.Errorf("what another admin has cordoned is open: %+v %v", service, err)
	}
	for _, host := range []string{d.from, d.to} {
		for _, s := range d.on(t, host) {
			if s.Status == "VERIFY_RESIZE" {
				t.Errorf("server %s waits for a confirmation", s.Name)
			}
		}
	}
}
