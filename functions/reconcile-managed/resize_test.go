package reconcilemanaged

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongRollbackOfResize: the flavor that a server had is declared again while Nova waits for the confirmation of its
// resize. The server ends with it.
func TestLongRollbackOfResize(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	by, here := w.trust(t), testkit.Sandbox(t)
	declare := func(flavor string) {
		t.Helper()
		w.declare(t, domain.KindMachine, "web", domain.MachineSpec{
			Flavor: flavor, Image: here.Image, Networks: []string{here.Network},
		}, by, time.Now())
	}
	is := func(what string, isReached func(domain.Server) bool) {
		t.Helper()
		testkit.Eventually(t, 2*time.Minute, what, func() bool {
			servers, _, err := w.Session(t).Servers(t.Context(), domain.ServerQuery{Limit: 10})
			return err == nil && len(servers) == 1 && isReached(servers[0])
		})
	}
	ready := func(flavor string) {
		t.Helper()
		is("it has the flavor "+flavor, func(s domain.Server) bool {
			w.round(t, nil)
			m := w.get(t, domain.KindMachine, "web")
			return s.Flavor.Name == flavor && s.Status == "ACTIVE" && m.Status == domain.ManagedReady
		})
	}
	declare(here.Flavor)
	w.round(t, nil)
	ready(here.Flavor)

	declare("m1.small")
	w.round(t, nil)
	is("it waits for the confirmation", func(s domain.Server) bool { return s.Status == "VERIFY_RESIZE" })
	declare(here.Flavor)
	ready(here.Flavor)
}
