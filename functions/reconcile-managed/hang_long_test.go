package reconcilemanaged

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongCinderHangs: while Cinder accepts connections and does not answer, and 30 projects have declared volumes, a
// server that another project declares is ready within twice the time that it takes without that.
func TestLongCinderHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	by, here := w.trust(t), testkit.Sandbox(t)
	hangs := testkit.RedirectTo(t, map[string]string{"volumev3": testkit.Hanging(t)}).Env(t, "collector")
	app := testkit.Start(t, testkit.Env(t, w.database, hangs), Function)
	tick := func() { _, _ = app.TryTick(t, "reconcile-managed") }
	// takes returns how long it takes until a declared server is ready.
	takes := func(name string) time.Duration {
		began := time.Now()
		w.declare(t, domain.KindMachine, name, domain.MachineSpec{
			Flavor: here.Flavor, Image: here.Image, Networks: []string{here.Network},
		}, by, began)
		go tick()
		testkit.Eventually(t, 4*time.Minute, name+" is ready", func() bool {
			return w.get(t, domain.KindMachine, name).Status == domain.ManagedReady
		})
		return time.Since(began)
	}
	// median returns how long the second fastest of three takes.
	median := func(what string) time.Duration {
		var all []time.Duration
		for n := range 3 {
			all = append(all, takes(fmt.Sprint(what, "-", n)))
		}
		t.Logf("%s: %v", what, all)
		slices.Sort(all)
		return all[1]
	}
	takes("first") // logs in
	without := median("without")
	for n := range 30 {
		other := *w
		project := *w.Project
		project.ID = fmt.Sprintf("p%02d", n)
		other.Project = &project
		delegated := *by
		delegated.ID, delegated.ProjectID = uuid.Must(uuid.NewV7()), project.ID
		other.declare(t, domain.KindVolume, "data", domain.VolumeSpec{SizeGB: 1}, &delegated, time.Now())
	}
	go tick()
	if with := median("with"); with > 2*without {
		t.Errorf("it takes %s beside volumes that hang, and %s without them", with, without)
	}
	if n := testkit.Scalar[int](t, w.conn, `
select count(*)::int from managed_projects where project_id like 'p__' and (attempts > 0 or claimed_until > now())`); n < 30 {
		t.Errorf("of 30 projects %d wait for Cinder", n)
	}
}
