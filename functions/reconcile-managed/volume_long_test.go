package reconcilemanaged

import (
	"slices"
	"testing"
	"time"

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
