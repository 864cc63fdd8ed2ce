package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestObserveAgents: what an agent says counts while it is fresh, also of a host that Nova does not have.
func TestObserveAgents(t *testing.T) {
	t.Parallel()
	w := watch(t, "a")
	w.reported("a", 0)
	for _, name := range []string{"a", "metal"} {
		if n, err := w.heartbeat(name, domain.NodeSuspect, "a disk fails"); err != nil ||
			n.AgentReason != "a disk fails" || n.Version != 1 {
			t.Fatalf("%+v: %v", n, err)
		}
	}
	changed := w.observed(limits, "a suspect", "metal suspect")
	for _, n := range changed {
		if n.StatusReason != "its agent says: a disk fails" {
			t.Errorf("%s: %q", n.Name, n.StatusReason)
		}
	}
	w.events("metal", "unknown suspect")
	for _, name := range []string{"a", "metal"} {
		if _, err := w.heartbeat(name, domain.NodeUp, ""); err != nil {
			t.Fatal(err)
		}
	}
	w.observed(limits, "a up", "metal up")
	w.exec("update nodes set agent_at = now() - interval '100 seconds'")
	w.observed(limits, "metal suspect")
	w.exec("update nodes set agent_at = now() - interval '200 seconds'")
	w.observed(limits, "metal down")
	if n := w.node("metal"); !strings.HasPrefix(n.StatusReason, "its agent has not reported since 2") {
		t.Errorf("got %q", n.StatusReason)
	}
}

// TestObserveCellDown: a host of a cell that is down stays as it was, however long that takes.
func TestObserveCellDown(t *testing.T) {
	t.Parallel()
	w := watch(t, "a", "b")
	w.reported("a", time.Second)
	w.reported("b", time.Second)
	w.observed(limits, "a up", "b up")
	w.exec("update nodes set reported_at = now() - interval '1 hour', updated_at = now() - interval '1 hour'")
	before := w.hosts[1]
	w.hosts[1] = domain.ComputeHost{Name: "b", CellDown: true}
	w.observed(limits)
	w.events("b")
	if n := w.node("b"); n.Status != domain.NodeUp || n.StatusReason != "its cell does not answer" || !n.IsUp ||
		!n.Enabled || n.Zone != "nova" || n.ServiceID != "s-b" || n.Servers != 2 {
		t.Errorf("got %+v", n)
	}
	w.hosts[1] = before
	w.reported("b", time.Second)
	w.observed(limits)
	if n := w.node("b"); n.StatusReason != "" {
		t.Errorf("its cell answers again: %+v", n)
	}
}
