package reconcilemanaged

import (
	"slices"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestOrphan: a resource that is deleted with orphan leaves its object in OpenStack, also when its delegation is lost.
func TestOrphan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Cleanup(func() { w.DeleteVolumes(t) })
	by := w.trust(t)
	var objects []string
	for _, name := range []string{"data", "logs"} {
		w.declare(t, domain.KindVolume, name, domain.VolumeSpec{SizeGB: 1}, by, time.Now())
	}
	testkit.Eventually(t, time.Minute, "the volumes are ready", func() bool {
		w.round(t, nil)
		return testkit.Scalar[bool](t, w.conn, "select bool_and(status = 'ready') from managed")
	})
	for _, name := range []string{"data", "logs"} {
		m := w.get(t, domain.KindVolume, name)
		objects = append(objects, m.Members[0].ObjectID)
		m.Orphan = true
		if _, err := w.store.Delete(t.Context(), m, nil); err != nil {
			t.Fatal(err)
		}
		w.round(t, nil)
		if n := testkit.Scalar[int](t, w.conn, "select count(*)::int from managed where name = $1", name); n != 0 {
			t.Errorf("%s is still declared", name)
		}
		w.exec(t, "update connections set status = 'lost'") // for the next one
	}
	left, err := w.Session(t).Volumes(t.Context(), "", "")
	for _, id := range objects {
		n := slices.IndexFunc(left, func(v domain.Volume) bool { return v.ID == id })
		if n < 0 || left[n].Status != "available" {
			t.Errorf("the volume %s is not in %+v: %v", id, left, err)
		}
	}
}

// TestDeclaredAgain: without repair, what others have deleted is made again when it is declared again.
func TestDeclaredAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Cleanup(func() { w.DeleteVolumes(t) })
	by, spec := w.trust(t), domain.VolumeSpec{SizeGB: 1}
	is := func(what string, status domain.ManagedStatus, isReached func(domain.Managed) bool) {
		t.Helper()
		testkit.Eventually(t, time.Minute, what, func() bool {
			w.round(t, nil)
			m := w.get(t, domain.KindVolume, "data")
			return m.Status == status && isReached(m)
		})
	}
	w.declare(t, domain.KindVolume, "data", spec, by, time.Now())
	is("it is ready", domain.ManagedReady, func(domain.Managed) bool { return true })
	first := w.get(t, domain.KindVolume, "data").Members[0].ObjectID
	w.DeleteVolumes(t)
	is("its absence is drift", domain.ManagedDegraded, func(m domain.Managed) bool { return len(m.Drift) == 1 })
	w.declare(t, domain.KindVolume, "data", spec, by, time.Now())
	is("there is another one", domain.ManagedReady, func(m domain.Managed) bool {
		return m.Members[0].ObjectID != first && m.Request == ""
	})
}
