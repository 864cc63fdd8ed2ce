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

// settled does rounds until the resources are ready, and returns the ids of the first members of servers.
func (w *world) settled(t *testing.T, names ...string) (servers []string) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, "the resources are ready", func() bool {
		w.round(t, nil)
		return testkit.Scalar[bool](t, w.conn, "select bool_and(status = 'ready') from managed")
	})
	for _, name := range names {
		m := w.get(t, domain.KindMachine, name)
		if len(m.Members) != 1 || len(m.Drift) > 0 {
			t.Fatalf("%s has the members %+v, and the drift %+v", name, m.Members, m.Drift)
		}
		servers = append(servers, m.Members[0].ObjectID)
	}
	return servers
}

// has checks that a server has a volume, and had it at its first boot or not.
func (w *world) has(t *testing.T, server string, isFirst bool) {
	t.Helper()
	volume := w.get(t, domain.KindVolume, "data").Members[0].ObjectID
	if status, isAttached := w.Attached(t, volume, server); status != "in-use" || !isAttached {
		t.Errorf("the volume is %s, and attached to %s: %t", status, server, isAttached)
	}
	log, err := w.Session(t).Actions(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	isLater := slices.ContainsFunc(log, func(a domain.LoggedAction) bool { return a.Name == "attach_volume" })
	if isLater == isFirst {
		t.Errorf("the server %s has had the actions %+v", server, log)
	}
}

// TestLongReplaceWithVolume: the first boot of a server finds its volume, also when it replaces one that had it.
func TestLongReplaceWithVolume(t *testing.T) {
	t.Parallel()
	w, here := newWorld(t), testkit.Sandbox(t)
	t.Cleanup(func() { w.DeleteVolumes(t) })
	by := w.trust(t)
	spec := domain.MachineSpec{
		Flavor: here.Flavor, Image: here.Image, Networks: []string{here.Network}, Volumes: []string{"data"},
		Update: domain.UpdateReplace,
	}
	w.declare(t, domain.KindVolume, "data", domain.VolumeSpec{SizeGB: 1}, by, time.Now())
	w.declare(t, domain.KindConfigmap, "files", domain.ConfigmapSpec{Data: map[string]string{"a": "b"}}, by, time.Now())
	w.declare(t, domain.KindMachine, "db", spec, by, time.Now())
	before := w.settled(t, "db")
	w.has(t, before[0], true)
	spec.Configmaps = []string{"files"} // only another server can have it
	w.declare(t, domain.KindMachine, "db", spec, by, time.Now())
	after := w.settled(t, "db")
	if after[0] == before[0] {
		t.Error("it was not replaced")
	}
	w.has(t, after[0], true)
	if left, _, err := w.Session(t).Servers(t.Context(), domain.ServerQuery{Limit: 10}); err != nil || len(left) != 1 {
		t.Errorf("the servers %+v are left: %v", left, err)
	}
}

// TestLongBootVolume: where flavors have no disk, servers boot from volumes, which are deleted with them. Only another
// server can have another volume or image.
func TestLongBootVolume(t *testing.T) {
	t.Parallel()
	w, here := newWorld(t), testkit.Sandbox(t)
	t.Cleanup(func() { w.DeleteVolumes(t) })
	cloud, by := w.Session(t), w.trust(t)
	spec := domain.MachineSpec{
		Flavor: w.DisklessFlavor(t), Image: here.Image, Networks: []string{here.Network},
		Volumes: []string{"data"}, BootVolume: &domain.BootVolumeSpec{SizeGB: 1},
	}
	w.declare(t, domain.KindVolume, "data", domain.VolumeSpec{SizeGB: 1}, by, time.Now())
	w.declare(t, domain.KindMachine, "db", spec, by, time.Now())
	server := w.settled(t, "db")[0]
	w.has(t, server, true)
	// boots returns the size of the volume that the server boots from.
	boots := func(server string) (gigabytes int) {
		t.Helper()
		attached, err := cloud.Attachments(t.Context(), server)
		if err != nil || len(attached) != 2 {
			t.Fatalf("it has the volumes %+v, %v", attached, err)
		}
		for _, a := range attached {
			if v, err := cloud.Volume(t.Context(), a.VolumeID); err == nil && v.IsBootable && a.DeleteOnTermination {
				gigabytes = v.SizeGB
			}
		}
		return gigabytes
	}
	if n := boots(server); n != 1 {
		t.Errorf("it boots from %d GB", n)
	}
	spec.Update, spec.BootVolume = domain.UpdateReplace, &domain.BootVolumeSpec{SizeGB: 2}
	w.declare(t, domain.KindMachine, "db", spec, by, time.Now())
	if after := w.settled(t, "db")[0]; after == server || boots(after) != 2 {
		t.Errorf("the server %s took the place of %s, and boots from %d GB", after, server, boots(after))
	}
	m := w.get(t, domain.KindMachine, "db")
	if _, err := w.store.Delete(t.Context(), m, nil); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 2*time.Minute, "only data is left", func() bool {
		w.round(t, nil)
		left, err := cloud.Volumes(t.Context(), "", "")
		return err == nil && len(left) == 1 && left[0].Name == "data" && left[0].Status == "available"
	})
}

// TestLongMultiattach: servers get a volume that others have, if its type allows it: in their create call, and later.
func TestLongMultiattach(t *testing.T) {
	t.Parallel()
	w, here := newWorld(t), testkit.Sandbox(t)
	t.Cleanup(func() { w.DeleteVolumes(t) })
	by := w.trust(t)
	spec := domain.MachineSpec{Flavor: here.Flavor, Image: here.Image, Networks: []string{here.Network}}
	w.declare(t, domain.KindVolume, "data", domain.VolumeSpec{SizeGB: 1}, by, time.Now())
	w.declare(t, domain.KindMachine, "c", spec, by, time.Now())
	w.settled(t, "c")
	testkit.MakeMultiattach(t, w.get(t, domain.KindVolume, "data").Members[0].ObjectID)
	spec.Volumes = []string{"data"}
	for _, name := range []string{"a", "b"} {
		w.declare(t, domain.KindMachine, name, spec, by, time.Now())
	}
	servers := w.settled(t, "a", "b")
	w.declare(t, domain.KindMachine, "c", spec, by, time.Now())
	later := w.settled(t, "c")
	for _, server := range servers {
		w.has(t, server, true)
	}
	w.has(t, later[0], false)
}

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
