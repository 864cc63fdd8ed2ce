package pollinstances

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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

// TestNovaAway for a short time changes nothing; for longer than POLL_UNKNOWN_AFTER it makes the instances unknown, once,
// with Nova's last word kept; and what happened meanwhile is told when it is back. Connections to it break on the way.
func TestNovaAway(t *testing.T) {
	t.Parallel()
	w := launched(t, 2)
	b := newBetween(t)
	p := w.poller(t, with(b.env, map[string]string{"POLL_FOLLOW": "0s"}))
	impatient := w.poller(t, with(b.env, map[string]string{"POLL_FOLLOW": "0s", "POLL_UNKNOWN_AFTER": "1s"}))
	tick(t, p, 204)
	b.set(func(b *between) { b.away = true })
	for range 2 {
		tick(t, p, 503)
	}
	w.ends(t, w.instances[0], "active/ACTIVE")
	time.Sleep(time.Second) // the last read is older than a second now
	for range 2 {
		tick(t, impatient, 503)
	}
	for _, id := range w.instances {
		w.ends(t, id, " active/ACTIVE unknown/ACTIVE")
	}
	w.Stop(t, w.servers[0])
	w.Delete(t, w.servers[1])
	b.set(func(b *between) { b.away = false })
	tick(t, p, 204)
	w.ends(t, w.instances[0], "unknown/ACTIVE stopped/SHUTOFF")
	w.ends(t, w.instances[1], "unknown/ACTIVE deleted/DELETED")
}

// TestUnknownIsLookedUp: a server that did not change while Nova was away is in no list of changes.
func TestUnknownIsLookedUp(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	p := w.poller(t, map[string]string{"POLL_FOLLOW": "0s"})
	tick(t, p, 204)
	w.exec(t, "update instances set state = 'unknown'")
	testkit.Past(t, w.servers[0], time.Now().Add(-time.Hour), nil)
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE active/ACTIVE")
}

// TestVanished servers count as deleted at the second look, and not when they are back before that. That Nova hides a
// server, from its lists and by its id, is done to its answers on their way.
func TestVanished(t *testing.T) {
	t.Parallel()
	w := launched(t, 2)
	b := newBetween(t)
	p := w.poller(t, with(b.env, map[string]string{"POLL_FOLLOW": "0s"}))
	tick(t, p, 204)
	later := func() { // the next full read, and the second look, are due
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
	for range 2 { // the second comes too soon to be another look
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
	told := w.events(t, w.instances[0])
	if d := told[len(told)-1].Data; d.Name == "" || len(d.Addresses) == 0 {
		t.Errorf("what was known of it is gone: %+v", d)
	}
	hide(w.servers[1]) // it was found meanwhile, so this is a first look again
	later()
	tick(t, p, 204)
	w.ends(t, w.instances[1], "active/ACTIVE")
}

// TestErrorsDeleteNothing: a cell that is said to be down, and look-ups that fail. The answers are made worse on their way.
func TestErrorsDeleteNothing(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetween(t)
	p := w.poller(t, with(b.env, map[string]string{"POLL_FOLLOW": "0s"}))
	tick(t, p, 204)
	for name, broken := range map[string]string{"the cells": "os-simple-tenant-usage", "the look-up": "servers/" + w.servers[0]} {
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
			t.Errorf("with %s broken it was told %s", name, got)
		}
	}
}

// TestNovaFailsOverOneServer: a server that Nova cannot list among what changed keeps nobody from hearing of the others.
func TestNovaFailsOverOneServer(t *testing.T) {
	t.Parallel()
	w := launched(t, 2)
	b := newBetween(t)
	p := w.poller(t, with(b.env, map[string]string{"POLL_FOLLOW": "0s"}))
	tick(t, p, 204)
	b.set(func(b *between) { b.fails = func(uri string) bool { return strings.Contains(uri, "changes-since=") } })
	w.Stop(t, w.servers[0])
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE stopped/SHUTOFF")
	w.Delete(t, w.servers[1])
	tick(t, p, 204)
	w.exec(t, "update instances set missed_at = missed_at - interval '1 minute'") // two looks have to be apart
	tick(t, p, 204)
	w.ends(t, w.instances[1], "active/ACTIVE deleted/DELETED")
	b.set(func(b *between) { b.fails = func(uri string) bool { return strings.Contains(uri, "/servers") } })
	tick(t, p, 503) // it fails over whatever it is asked
}

// TestNovaFailsOverAnothersServer: who reads the whole cloud then reads each project by itself, and hears at once of those
// that have no such server.
func TestNovaFailsOverAnothersServer(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetweenAs(t, "admin")
	b.set(func(b *between) {
		b.fails = func(uri string) bool {
			return strings.Contains(uri, "changes-since=") && !strings.Contains(uri, "project_id="+w.ID)
		}
	})
	p := w.poller(t, b.env)
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

// TestUnheardStatus is kept as it is, and is something in progress. Nova's answers are changed on their way.
func TestUnheardStatus(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetween(t)
	p := w.poller(t, with(b.env, map[string]string{"POLL_FOLLOW": "0s"}))
	tick(t, p, 204)
	b.set(func(b *between) {
		b.change = func(s map[string]any) bool { s["status"] = "PONDERING"; return true }
	})
	w.exec(t, "update polls set full_at = full_at - interval '1 hour'")
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE updating/PONDERING")
}

// TestOneProjectIsDisabled: the others are read all the same, and its instances are unknown after a while.
func TestOneProjectIsDisabled(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	other := &world{Project: testkit.NewProject(t), database: w.database}
	other.launch(t, 1)
	other.Await(t, other.servers[0], "ACTIVE")
	p := w.poller(t, map[string]string{"POLL_FOLLOW": "0s", "POLL_UNKNOWN_AFTER": "1s"})
	tick(t, p, 204)
	w.Close(t)
	other.Stop(t, other.servers[0])
	p = w.poller(t, map[string]string{"POLL_FOLLOW": "0s", "POLL_UNKNOWN_AFTER": "1s"}) // with no session from before
	tick(t, p, 204)                                                                     // to send the event again would not help
	other.ends(t, other.instances[0], "stopped/SHUTOFF")
	w.ends(t, w.instances[0], "active/ACTIVE")
	time.Sleep(time.Second)
	w.exec(t, "update polls set not_before = null")
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE unknown/ACTIVE")
	w.Reopen(t)
	w.exec(t, "update polls set not_before = null")
	tick(t, p, 204)
	w.ends(t, w.instances[0], "unknown/ACTIVE active/ACTIVE")
}

// TestManyTicksAtOnce, at two copies: one of them does the work, the others do not wait for it.
func TestManyTicksAtOnce(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetween(t)
	b.slowness = time.Second
	env := with(b.env, map[string]string{"POLL_FOLLOW": "0s"})
	copies := []*testkit.Process{w.poller(t, env), w.poller(t, env)}
	var all sync.WaitGroup
	for n := range 12 {
		all.Go(func() { tick(t, copies[n%2], 204) })
	}
	all.Wait()
	w.ends(t, w.instances[0], "building/BUILD active/ACTIVE")
	changes := slices.DeleteFunc(b.requests(), func(path string) bool { return !strings.Contains(path, "changes-since") })
	if len(changes) > 4 { // each replica asks for the whole cloud, which is refused
		t.Errorf("nova was asked %v", changes)
	}
}

// TestACopyIsKilled in the middle of its work: once its claim has ended another one does it.
func TestACopyIsKilled(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	b := newBetween(t)
	b.slowness = 3 * time.Second
	first := w.poller(t, with(b.env, map[string]string{"POLL_FOLLOW": "0s"}))
	second := w.poller(t, map[string]string{"POLL_FOLLOW": "0s"})
	var all sync.WaitGroup
	all.Go(func() { _, _ = first.TryTick(t, "poll-instances") })
	testkit.Eventually(t, 20*time.Second, "the first copy is at Nova", func() bool { return len(b.requests()) > 0 })
	first.Kill()
	all.Wait()
	w.ends(t, w.instances[0], "building/BUILD")
	tick(t, second, 204)
	w.ends(t, w.instances[0], "building/BUILD") // the dead one's claim holds yet
	testkit.Eventually(t, 2*claimFor, "another copy has read it", func() bool {
		time.Sleep(time.Second)
		tick(t, second, 204)
		return strings.HasSuffix(w.states(t, w.instances[0]), "active/ACTIVE")
	})
}
