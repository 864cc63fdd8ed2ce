package reconcilemanaged

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestStalledUpdate: an update whose replacements fail twice stops and says so. The other servers stay, and a rollback
// replaces what has failed.
func TestStalledUpdate(t *testing.T) {
	t.Parallel()
	for most := range 2 {
		t.Run(strconv.Itoa(most), func(t *testing.T) {
			t.Parallel()
			w := newFakeWorld(t)
			w.change = func(spec *domain.DeploymentSpec) { spec.MaxUnavailable = &most }
			w.declare(t, 3, "tiny", 0)
			w.becomesQuiet(t, &crasher{})
			w.nova.broken["small"] = true
			w.declare(t, 3, "small", 0)
			w.change = nil
			for range 4 { // minutes
				w.tick(t, []managed.Engine{w.replica(&crasher{})})
				if n := strings.Count(w.nova.active(), ":tiny"); n < 3-most {
					t.Errorf("only %d of 3 work: %s", n, w.nova.active())
				}
			}
			m := w.get(t)
			c := progressing(m)
			if c.Status != "False" || c.Reason != "ReplacementsFailed" ||
				!strings.Contains(c.Message, "No valid host") || !m.NextAt.IsZero() {
				t.Errorf("it is due at %s, with %+v", m.NextAt, m.Conditions)
			}
			if m.Status != domain.ManagedDegraded || w.nova.creates != 3+2 {
				t.Errorf("it is %s, %s, after %d creations", m.Status, m.Reason, w.nova.creates)
			}
			w.declare(t, 0, "", 1)
			w.becomesQuiet(t, &crasher{})
			w.check(t, "web-0:tiny web-1:tiny web-2:tiny", 3+2+most)
			if c := progressing(w.get(t)); c.Status != "True" {
				t.Errorf("rolled back it has %+v", c)
			}
		})
	}
}

func progressing(m domain.Managed) (found domain.Condition) {
	for _, c := range m.Conditions {
		if c.Type == domain.ConditionProgressing {
			found = c
		}
	}
	return found
}

// TestBrokenServers: servers in ERROR are made again after pauses that grow, for as long as it takes.
func TestBrokenServers(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	w.nova.broken["tiny"] = true
	w.declare(t, 2, "tiny", 0)
	var attempts []int
	for range 3 {
		w.tick(t, []managed.Engine{w.replica(&crasher{})})
		attempts = append(attempts, testkit.Scalar[int](t, w.rows, "select max(attempts) from managed_members"))
	}
	if attempts[0] < 3 || attempts[2] > 6 || attempts[2] <= attempts[0] { // 5, 10, 20, 40, 80 s
		t.Errorf("after one, two and three minutes there were %d attempts", attempts)
	}
	if c := progressing(w.get(t)); c.Status != "True" {
		t.Errorf("a creation has %+v", c)
	}
	w.nova.broken["tiny"] = false
	w.pass(t, 10*time.Minute)
	w.becomesQuiet(t, &crasher{})
	w.check(t, "web-0:tiny web-1:tiny", w.nova.creates)
}

// TestErrorOfReadyServers: a server that was ready is left alone when Nova sets it to ERROR, also by the same
// declaration again or another one that needs no other server, and its resource shows Nova's fault. It is ready when
// the error ends. An update that takes another server in any case makes it again, and so does repair: auto.
func TestErrorOfReadyServers(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	w.change = func(spec *domain.DeploymentSpec) { spec.Update = domain.UpdateInPlace }
	w.declare(t, 2, "tiny", 0)
	w.becomesQuiet(t, &crasher{})
	ids := func() (all []string) {
		for _, s := range w.nova.servers {
			all = append(all, s.ID)
		}
		return all
	}
	before := ids()
	report := func(status string) { // as Nova and poll-instances do
		t.Helper()
		s := &w.nova.servers[0]
		if s.Status, s.Fault = status, nil; status == "ERROR" {
			s.Fault = &domain.Fault{Code: 500, Message: "the disk has failed"}
		}
		w.exec(t, "update managed set next_at = now()")
		w.exec(t, "update managed_projects set due_at = now()")
		for range 3 {
			w.tick(t, []managed.Engine{w.replica(&crasher{})})
		}
	}
	report("ERROR")
	w.declare(t, 2, "tiny", 0)
	w.tick(t, []managed.Engine{w.replica(&crasher{})})
	m := w.get(t)
	isShown := slices.ContainsFunc(m.Members, func(m domain.Member) bool {
		return m.ObjectID == before[0] && m.Status == domain.MemberError && m.Reason == "the disk has failed"
	})
	if m.Status != domain.ManagedDegraded || m.Reason != "the disk has failed" || !isShown ||
		!m.NextAt.IsZero() || !slices.Equal(ids(), before) {
		t.Errorf("it is %s, %s, due at %s, with %+v", m.Status, m.Reason, m.NextAt, m.Members)
	}
	report("ACTIVE")
	if m := w.get(t); m.Status != domain.ManagedReady || m.Members[0].Status != m.Members[1].Status {
		t.Errorf("active again it is %s, %s, %+v", m.Status, m.Reason, m.Members)
	}
	report("ERROR")
	for _, flavor := range []string{"tiny", "small"} {
		w.declare(t, 3, flavor, 0)
		w.tick(t, []managed.Engine{w.replica(&crasher{})})
		if m := w.get(t); !slices.Contains(ids(), before[0]) || m.Reason != "the disk has failed" {
			t.Errorf("declared with the flavor %s it is %s, %s, with %+v", flavor, m.Status, m.Reason, m.Members)
		}
	}
	w.change = nil // update: replace
	w.declare(t, 3, "small", 0)
	w.becomesQuiet(t, &crasher{})
	if slices.Contains(ids(), before[0]) {
		t.Error("an update that replaces leaves a server in ERROR")
	}
	creates := w.nova.creates
	w.check(t, "web-0:small web-1:small web-2:small", creates)
	w.exec(t, "update managed set repair = 'auto'")
	report("ERROR")
	w.becomesQuiet(t, &crasher{})
	w.check(t, "web-0:small web-1:small web-2:small", creates+1)
}

// TestListsOfCreations: a round lists flavors, networks and images once, however many servers it makes.
func TestListsOfCreations(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	w.declare(t, 5, "tiny", 0)
	w.round(t, w.replica(&crasher{}))
	for _, name := range []string{"flavors", "networks", "images"} {
		if n := w.nova.calls[name]; n != 1 || w.nova.creates != 5 {
			t.Errorf("for %d creations %s are listed %d times", w.nova.creates, name, n)
		}
	}
}
