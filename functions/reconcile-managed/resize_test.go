package reconcilemanaged

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// machine is a server that a test declares with one flavor after another.
type machine struct {
	*world

	by *domain.Connection
}

func (w machine) declare(t *testing.T, flavor string) {
	t.Helper()
	here := testkit.Sandbox(t)
	w.world.declare(t, domain.KindMachine, "web", domain.MachineSpec{
		Flavor: flavor, Image: here.Image, Networks: []string{here.Network},
	}, w.by, time.Now())
}

// is waits until Nova's only server of the project is so.
func (w machine) is(t *testing.T, what string, isReached func(domain.Server) bool) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, what, func() bool {
		servers, _, err := w.Session(t).Servers(t.Context(), domain.ServerQuery{Limit: 10})
		return err == nil && len(servers) == 1 && isReached(servers[0])
	})
}

// ready does rounds until the server is as declared.
func (w machine) ready(t *testing.T, flavor string) {
	t.Helper()
	w.is(t, "it has the flavor "+flavor, func(s domain.Server) bool {
		w.round(t, nil)
		m := w.get(t, domain.KindMachine, "web")
		return s.Flavor.Name == flavor && s.Status == "ACTIVE" && m.Status == domain.ManagedReady
	})
}

// newMachine declares a server, and waits until it is ready.
func newMachine(t *testing.T) machine {
	t.Helper()
	w := newWorld(t)
	m := machine{w, w.trust(t)}
	m.declare(t, testkit.Sandbox(t).Flavor)
	m.round(t, nil)
	m.ready(t, testkit.Sandbox(t).Flavor)
	return m
}

// TestLongRollbackOfResize: the flavor that a server had is declared again while Nova waits for the confirmation of its
// resize. The server ends with it.
func TestLongRollbackOfResize(t *testing.T) {
	t.Parallel()
	w, tiny := newMachine(t), testkit.Sandbox(t).Flavor
	w.declare(t, "m1.small")
	w.round(t, nil)
	w.is(t, "it waits for the confirmation", func(s domain.Server) bool { return s.Status == "VERIFY_RESIZE" })
	w.declare(t, tiny)
	w.ready(t, tiny)
}

// TestLongResizeWithoutHost: Nova accepts a resize and then finds no host. That is repeated once after a pause. Then
// the resource stops, and says why.
func TestLongResizeWithoutHost(t *testing.T) {
	t.Parallel()
	w := newMachine(t)
	w.declare(t, w.TooLargeFlavor(t))
	w.is(t, "it has stopped", func(domain.Server) bool {
		w.round(t, nil)
		m := w.get(t, domain.KindMachine, "web")
		return progressing(m).Reason == "NoProgress"
	})
	m := w.get(t, domain.KindMachine, "web")
	if m.Status != domain.ManagedError || !strings.Contains(m.Reason, "did not make it") || m.Members[0].Writes != 2 {
		t.Errorf("it is %s, %s, %+v", m.Status, m.Reason, m.Members)
	}
}

// TestLongTagsAreRemoved: a server whose tags others remove gets them back, also without repair.
func TestLongTagsAreRemoved(t *testing.T) {
	t.Parallel()
	w := newMachine(t)
	before := w.get(t, domain.KindMachine, "web").Members[0]
	w.Untag(t, before.ObjectID)
	w.is(t, "it has its tags", func(s domain.Server) bool {
		w.round(t, nil)
		return slices.Contains(s.Tags, domain.ManagedTag) && slices.Contains(s.Tags, before.ID.String())
	})
	w.ready(t, testkit.Sandbox(t).Flavor)
	if after := w.get(t, domain.KindMachine, "web").Members[0]; after.ObjectID != before.ObjectID {
		t.Errorf("it was made again: %+v", after)
	}
}
