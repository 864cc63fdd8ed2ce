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
