package reconcilemanaged

import (
	"slices"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// writtenSQL tells every row of what is declared and of what was reported apart from an older version of it.
const writtenSQL = `
select string_agg(row, ' ' order by row) from (
    select 'managed ' || ctid || xmin as row from managed
    union all select 'member ' || ctid || xmin from managed_members
    union all select 'revision ' || ctid || xmin from managed_revisions
    union all select 'event ' || ctid || xmin from events
    union all select 'connection ' || ctid || xmin from connections) x`

// TestRoundWithoutChanges: a round that finds all as it was writes no row of a resource, with drift and without.
func TestRoundWithoutChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	app := testkit.Start(t, testkit.Env(t, w.database, nil), Function)
	t.Cleanup(func() { w.DeleteVolumes(t) })
	by, spec := w.trust(t), domain.VolumeSpec{SizeGB: 1, Metadata: map[string]string{"a": "1"}}
	w.declare(t, domain.KindVolume, "data", spec, by, time.Now())
	w.declare(t, domain.KindConfigmap, "files", domain.ConfigmapSpec{Data: map[string]string{"a": "b"}}, by, time.Now())
	round := func() {
		t.Helper()
		w.exec(t, "update managed_projects set due_at = clock_timestamp(), scan_at = clock_timestamp()")
		if a := app.Tick(t, "reconcile-managed"); a.Status/100 != 2 {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
	}
	unchanged := func(what string) {
		t.Helper()
		before := testkit.Scalar[string](t, w.conn, writtenSQL)
		due := testkit.Scalar[time.Time](t, w.conn, "select due_at from managed_projects")
		round()
		if after := testkit.Scalar[string](t, w.conn, writtenSQL); after != before {
			t.Errorf("%s: a round has written\n%s, before it was\n%s", what, after, before)
		}
		if !testkit.Scalar[time.Time](t, w.conn, "select due_at from managed_projects").After(due) {
			t.Errorf("%s: there was no round", what)
		}
	}
	testkit.Eventually(t, 2*time.Minute, "the resources are ready", func() bool {
		round()
		return testkit.Scalar[bool](t, w.conn, "select bool_and(status = 'ready') from managed")
	})
	unchanged("as declared")

	volume := w.get(t, domain.KindVolume, "data").Members[0].ObjectID
	if err := w.Session(t).SetVolumeMetadata(t.Context(), volume, map[string]string{"a": "2"}, nil); err != nil {
		t.Fatal(err)
	}
	round()
	if m := w.get(t, domain.KindVolume, "data"); m.Status != domain.ManagedDegraded || len(m.Drift) != 1 {
		t.Fatalf("with drift it is %+v", m)
	}
	unchanged("with drift")
}

func progressing(m domain.Managed) (found domain.Condition) {
	for _, c := range m.Conditions {
		if c.Type == domain.ConditionProgressing {
			found = c
		}
	}
	return found
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

// TestLeavesToTheClock: an event that ends while something is due within a minute wakes the clock. It does not for what
// is due later.
func TestLeavesToTheClock(t *testing.T) {
	t.Parallel()
	database, woken := testkit.Database(t), testkit.NewWakes(t)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"WAKE_URL": woken.URL}), Function)
	conn := testkit.Pool(t, database)
	due := func(in string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), `
insert into managed_projects (project_id, domain_id, due_at) values ('p', 'd', now() + $1::interval)
on conflict (project_id) do update set due_at = excluded.due_at`, in); err != nil {
			t.Fatal(err)
		}
	}
	tick := func() {
		t.Helper()
		if a := app.Tick(t, "reconcile-managed"); a.Status != 204 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	due("10 minutes")
	tick()
	if n := woken.Count("clock"); n != 0 {
		t.Errorf("the clock was woken %d times for what is due in ten minutes", n)
	}
	due("40 seconds")
	woken.After(t, "clock", "an event that leaves something due in 40 s", tick)
}
