package pollinstances

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// limitTo2 makes pages small.
func limitTo2(r *http.Request) {
	if q := r.URL.Query(); strings.HasSuffix(r.URL.Path, "/servers/detail") {
		q.Set("limit", "2")
		r.URL.RawQuery = q.Encode()
	}
}

// with is env with more in it.
func with(env, more map[string]string) map[string]string {
	env = maps.Clone(env)
	maps.Copy(env, more)
	return env
}

// ages moves what is known of Nova into the past, by more than unknownAfter.
func (w *world) ages(t *testing.T) {
	t.Helper()
	w.exec(t, `update polls set since = since - interval '5 min', full_at = full_at - interval '5 min',
  failing_since = failing_since - interval '5 min', not_before = null;
update instances set seen_at = seen_at - interval '5 min'`)
}

// TestLongNovaAway: a short outage of Nova changes nothing. One that is longer than unknownAfter makes the
// instances unknown, once, and keeps their last status. The first poll after the outage reports what happened
// meanwhile. The test breaks the connections to Nova.
func TestLongNovaAway(t *testing.T) {
	t.Parallel()
	w := launched(t, 2)
	b := newBetween(t)
	p := w.poller(t, b.env, once)
	tick(t, p, 204)
	b.set(func(b *between) { b.unavailable = true })
	for range 2 {
		tick(t, p, 503)
	}
	w.ends(t, w.instances[0], "active/ACTIVE")
	w.ages(t)
	for range 2 {
		tick(t, p, 503)
	}
	for _, id := range w.instances {
		w.ends(t, id, " active/ACTIVE unknown/ACTIVE")
	}
	w.Stop(t, w.servers[0])
	w.Delete(t, w.servers[1])
	b.set(func(b *between) { b.unavailable = false })
	tick(t, p, 204)
	w.ends(t, w.instances[0], "unknown/ACTIVE stopped/SHUTOFF")
	w.ends(t, w.instances[1], "unknown/ACTIVE deleted/DELETED")
}

// TestLongUnknownIsLookedUp: a server that did not change while Nova was unavailable is in no list of changes.
func TestLongUnknownIsLookedUp(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	p := w.poller(t, nil, once)
	tick(t, p, 204)
	w.exec(t, "update instances set state = 'unknown'")
	testkit.Backdate(t, w.servers[0], time.Now().Add(-time.Hour), nil)
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE active/ACTIVE")
}

// TestLongMissingServer: a server counts as deleted when two polls miss it, and not when it is back before the second.
// The test removes the servers from Nova's answers.
func TestLongMissingServer(t *testing.T) {
	t.Parallel()
	w := launched(t, 2)
	b := newBetween(t)
	p := w.poller(t, b.env, once)
	tick(t, p, 204)
	later := func() { // the next full read, and the second lookup, are due
		w.exec(t, "update polls set full_at = full_at - interval '1 hour', since = since + interval '1 hour'")
		w.exec(t, "update instances set missed_at = missed_at - interval '1 minute'")
	}
	hide := func(ids ...string) {
		b.set(func(b *between) {
			b.change = func(s map[string]any) bool { return !slices.Contains(ids, s["id"].(string)) }
		})
	}
	hide(w.servers...)
	later()
	for range 2 { // the second tick comes too soon to count as another lookup
		tick(t, p, 204)
	}
	for _, id := range w.instances {
		w.ends(t, id, "active/ACTIVE")
	}
	hide(w.servers[0])
	later()
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE deleted/DELETED")
	w.ends(t, w.instances[1], "active/ACTIVE")
	events := w.events(t, w.instances[0])
	if d := events[len(events)-1].Data; d.Name == "" || len(d.Addresses) == 0 {
		t.Errorf("the deleted instance has lost its name or addresses: %+v", d)
	}
	hide(w.servers[1]) // it was found meanwhile, so the count of misses begins again
	later()
	tick(t, p, 204)
	w.ends(t, w.instances[1], "active/ACTIVE")
}

// TestLongErrorsDeleteNothing: a cell that is down, or a lookup that fails, never makes an instance deleted. The test
// changes Nova's answers.
func TestLongErrorsDeleteNothing(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetween(t)
	p := w.poller(t, b.env, once)
	tick(t, p, 204)
	for name, broken := range map[string]string{
		"the cells":   "os-simple-tenant-usage",
		"the look-up": "servers/" + w.servers[0],
	} {
		b.set(func(b *between) {
			b.change = func(map[string]any) bool { return false }
			b.before = func(r *http.Request) {
				if strings.Contains(r.URL.Path, broken) {
					r.URL.Path = "/v2.1/no-such-thing\xff" // which makes Nova answer with an error of its own
				}
			}
		})
		for range 3 {
			w.exec(t, "update polls set full_at = full_at - interval '1 hour'")
			w.exec(t, "update instances set missed_at = missed_at - interval '1 minute'")
			p.Tick(t, "poll-instances")
		}
		if got := w.states(t, w.instances[0]); !strings.HasSuffix(got, "active/ACTIVE") {
			t.Errorf("with %s broken, the events report %s", name, got)
		}
	}
}

// TestLongNovaFailsOverOneServer: when Nova fails over one server in its list of changes, the other servers are still
// followed.
func TestLongNovaFailsOverOneServer(t *testing.T) {
	t.Parallel()
	w := launched(t, 2)
	b := newBetween(t)
	p := w.poller(t, b.env, once)
	tick(t, p, 204)
	b.set(func(b *between) { b.fails = func(uri string) bool { return strings.Contains(uri, "changes-since=") } })
	w.Stop(t, w.servers[0])
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE stopped/SHUTOFF")
	w.Delete(t, w.servers[1])
	tick(t, p, 204)
	w.exec(t, "update instances set missed_at = missed_at - interval '1 minute'") // two lookups have to be apart
	tick(t, p, 204)
	w.ends(t, w.instances[1], "active/ACTIVE deleted/DELETED")
	b.set(func(b *between) { b.fails = func(uri string) bool { return strings.Contains(uri, "/servers") } })
	tick(t, p, 503) // now every list fails
}

// TestLongNovaFailsOverAnothersServer: an account that reads the whole cloud then reads each project separately, and
// reports changes immediately in the projects without the broken server.
func TestLongNovaFailsOverAnothersServer(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetweenAs(t, "admin")
	b.set(func(b *between) {
		b.fails = func(uri string) bool {
			return strings.Contains(uri, "changes-since=") && !strings.Contains(uri, "project_id="+w.ID)
		}
	})
	p := w.poller(t, b.env, 0)
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE")
	w.Delete(t, w.servers[0])
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE deleted/DELETED")
	for _, path := range b.requests() {
		if strings.Contains(path, "/servers/detail") && !strings.Contains(path, "changes-since=") {
			t.Errorf("all servers were read: %s", path)
		}
	}
}

// TestLongUnknownStatus: an unknown status is stored as it is, and the instance is updating. The test changes what Nova
// answers.
func TestLongUnknownStatus(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetween(t)
	p := w.poller(t, b.env, once)
	tick(t, p, 204)
	b.set(func(b *between) {
		b.change = func(s map[string]any) bool { s["status"] = "PONDERING"; return true }
	})
	w.exec(t, "update polls set full_at = full_at - interval '1 hour'")
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE updating/PONDERING")
}

// TestLongOneProjectIsDisabled: the other projects are still read, and the disabled one's instances become unknown.
func TestLongOneProjectIsDisabled(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	other := &world{Project: testkit.NewProject(t), database: w.database}
	other.launch(t, 1)
	other.Await(t, other.servers[0], "ACTIVE")
	p := w.poller(t, nil, once)
	tick(t, p, 204)
	w.Close(t)
	other.Stop(t, other.servers[0])
	// A new process has no session from before. The answer is not 503, because a second event would not help.
	p = w.poller(t, nil, once)
	tick(t, p, 204)
	other.ends(t, other.instances[0], "stopped/SHUTOFF")
	w.ends(t, w.instances[0], "active/ACTIVE")
	w.ages(t)
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE unknown/ACTIVE")
	w.Reopen(t)
	w.exec(t, "update polls set not_before = null")
	tick(t, p, 204)
	w.ends(t, w.instances[0], "unknown/ACTIVE active/ACTIVE")
}

// TestConcurrentTicks at two replicas: one tick does the work. In its process one more waits, which reads what was
// written since; all others end.
func TestConcurrentTicks(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetween(t)
	var release func()
	b.lists, release = gate(t)
	replicas := []*testkit.Client{w.poller(t, b.env, once), w.poller(t, b.env, once)}
	var all sync.WaitGroup
	var ended atomic.Int64
	for n := range 12 {
		all.Go(func() { tick(t, replicas[n%2], 204); ended.Add(1) })
	}
	testkit.Eventually(t, time.Minute, "all ticks have ended but the one that works and the one that waits",
		func() bool { return ended.Load() >= 10 })
	if n := ended.Load(); n != 10 {
		t.Errorf("%d ticks ended before Nova answered", n)
	}
	release()
	all.Wait()
	w.ends(t, w.instances[0], "building/BUILD active/ACTIVE")
	changes := slices.DeleteFunc(b.requests(),
		func(path string) bool { return !strings.Contains(path, "changes-since") })
	if len(changes) > 6 { // each replica lists the whole cloud, which is refused; one tick reads after the other
		t.Errorf("the requests to nova are %v", changes)
	}
}

// TestLongReplicaIsKilled in the middle of its work: when its claim has ended, another replica does the work. The test
// moves the claim's end.
func TestLongReplicaIsKilled(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetween(t)
	b.holds, _ = gate(t)
	first := testkit.Spawn(t, testkit.Env(t, w.database,
		with(b.env, map[string]string{"FUNCTION_TARGET": "poll-instances"})))
	second := w.poller(t, nil, once)
	var all sync.WaitGroup
	all.Go(func() { _, _ = first.TryTick(t, "poll-instances") })
	testkit.Eventually(t, time.Minute, "the first replica calls Nova", func() bool { return len(b.requests()) > 0 })
	first.Kill()
	all.Wait()
	w.ends(t, w.instances[0], "building/BUILD")
	w.exec(t, "update polls set claimed_until = claimed_until + interval '1 hour'")
	tick(t, second, 204)
	w.ends(t, w.instances[0], "building/BUILD") // the dead one's claim holds yet
	w.exec(t, "update polls set claimed_until = claimed_until - interval '2 hours'")
	tick(t, second, 204)
	w.ends(t, w.instances[0], "active/ACTIVE")
}

// track makes an instance of a server that runs, as far as is known.
func (w *world) track(t *testing.T) {
	t.Helper()
	id := uuid.NewString()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, raw_status, origin)
		values ('`+w.ID+"', '"+id+"', 0, 'x', '"+uuid.NewString()+"', 'active', 'ACTIVE', 'connected')")
	w.instances = append(w.instances, id)
}

// checkEvents checks the events of each instance of the project.
func (w *world) checkEvents(t *testing.T, want string) {
	t.Helper()
	for _, id := range w.instances {
		if got := w.states(t, id); got != want {
			t.Errorf("its events are %q, want %q", got, want)
		}
	}
}

// TestLongDeletedProject: a project is deleted from Keystone while its servers run on in Nova. The second check marks
// its instances as deleted, and the project is read no more. A disabled project is not deleted. The test makes Nova
// refuse the list of the whole cloud, so that each project is read separately.
func TestLongDeletedProject(t *testing.T) {
	t.Parallel()
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	disabled := &world{Project: testkit.NewProject(t), database: w.database}
	w.track(t)
	disabled.track(t)
	b := newBetweenAs(t, "admin")
	b.refuses = func(uri string) bool { return strings.Contains(uri, "all_tenants=1") }
	p := w.poller(t, b.env, once)
	conn := testkit.Connect(t, w.database)
	w.DeleteProject(t)
	disabled.Close(t)
	for range 2 { // the second tick comes too soon to count as another check
		tick(t, p, 204)
		w.checkEvents(t, "")
		disabled.checkEvents(t, "")
	}
	w.exec(t, "update instances set created_at = created_at - interval '1 hour'")
	w.exec(t, `update polls set gone_at = gone_at - interval '1 minute',
  failing_since = failing_since - interval '1 hour', since = since - interval '1 hour',
  full_at = full_at - interval '1 hour', not_before = null`)
	tick(t, p, 204)
	w.checkEvents(t, "deleted/DELETED")
	events := w.events(t, w.instances[0])
	if last := events[len(events)-1].Data; last.Fault == nil || last.Fault.Code != "project_gone" {
		t.Errorf("the reason is %+v", last.Fault)
	}
	disabled.checkEvents(t, "unknown/ACTIVE")
	tick(t, p, 204)
	if rows := testkit.Scalar[int](t, conn, "select count(*)::int from polls where project_id = $1", w.ID); rows != 0 {
		t.Error("it is still read")
	}
	if pause := testkit.Scalar[bool](t, conn,
		"select not_before > now() + interval '10 seconds' from polls where project_id = $1", disabled.ID); !pause {
		t.Error("a disabled project is read at each event")
	}
}
