package runleases

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// endsWith is what a lease says of a server that its end found in a state.
var endsWith = map[string]string{
	"RESCUE": "it was in RESCUE and was unrescued", "ERROR": "it was in ERROR, was made active and was stopped",
}

// TestEndInEachState: the end gets a server out of each state, whatever its user has brought it into, and whichever
// step a replica dies at. It is locked meanwhile; a lock of its user stays.
func TestEndInEachState(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"ACTIVE", "SHUTOFF", "RESCUE", "ERROR", "VERIFY_RESIZE", "PAUSED", "SUSPENDED"} {
		for _, isLocked := range []bool{false, true} {
			t.Run(status, func(t *testing.T) {
				t.Parallel()
				w := newHostWorld(t)
				r := w.lease(t, func(l *domain.Lease) { l.OnEnd = domain.OnEndShelve })
				w.becomes(t, domain.LeaseActive)
				id, _ := w.cloud.launch(r.Flavors[0].ID)
				server := w.cloud.servers[id]
				server.Status, server.Locked, server.Launched = status, isLocked, true
				w.dies = &crasher{everyNew: map[string]bool{}}
				w.end(t)
				w.becomes(t, domain.LeaseEnded)
				if server.Status != "SHELVED_OFFLOADED" || server.Locked != isLocked ||
					(len(w.cloud.locked) > 0) == isLocked {
					t.Errorf("after the lease it is %+v, locked by run-leases: %v", server, w.cloud.locked)
				}
				said := testkit.Scalar[string](t, w.rows, `select coalesce(data->'servers'->0->>'detail', '') from events
					where type = $1 and data->>'status' = 'ended'`, domain.LeaseEvent)
				if want := endsWith[status]; said != want {
					t.Errorf("the event says %q of the server, want %q", said, want)
				}
				delete(w.cloud.servers, id)
				w.clean(t)
			})
		}
	}
}

// TestResetNotMade: a reset that was stored and not made, because the replica died or Nova failed, is made later.
func TestResetNotMade(t *testing.T) {
	t.Parallel()
	begin := func() (*hostWorld, *domain.Server) {
		w := newHostWorld(t)
		r := w.lease(t, func(l *domain.Lease) { l.OnEnd = domain.OnEndShelve })
		w.becomes(t, domain.LeaseActive)
		id, _ := w.cloud.launch(r.Flavors[0].ID)
		w.cloud.servers[id].Status, w.cloud.servers[id].Launched = "ERROR", true
		w.dies = &crasher{}
		w.end(t)
		return w, w.cloud.servers[id]
	}
	w, _ := begin()
	w.becomes(t, domain.LeaseEnded)
	before := slices.Index(w.dies.names, "ResetServer") // the number of the write before it
	w, server := begin()
	w.dies.at = before
	w.becomes(t, domain.LeaseEnded)
	if server.Status != "SHELVED_OFFLOADED" || w.cloud.resets != 1 {
		t.Errorf("after a death before the reset it is %s, made active %d times", server.Status, w.cloud.resets)
	}
	w, server = begin()
	w.cloud.fails = "ResetServer"
	w.pass(t)
	if got := testkit.Scalar[string](t, w.rows, "select servers::text from reservations"); strings.Contains(got, "resets") {
		t.Errorf("a reset that failed is stored: %s", got)
	}
	w.cloud.fails = ""
	w.becomes(t, domain.LeaseEnded)
	if server.Status != "SHELVED_OFFLOADED" {
		t.Errorf("after a reset that failed it is %s", server.Status)
	}
}

// TestResetWithoutAnswer: a reset whose answer is lost may be done. Its server is stopped, and its owner notified. It
// uses up none of the resets that a server in ERROR has: Nova may have been unavailable.
func TestResetWithoutAnswer(t *testing.T) {
	t.Parallel()
	for _, isDone := range []bool{true, false} {
		w := newHostWorld(t)
		r := w.lease(t, func(l *domain.Lease) { l.OnEnd = domain.OnEndShelve })
		w.becomes(t, domain.LeaseActive)
		id, _ := w.cloud.launch(r.Flavors[0].ID)
		server := w.cloud.servers[id]
		server.Status, server.Launched = "ERROR", true
		w.end(t)
		if w.cloud.isLost = true; !isDone {
			w.cloud.broken = id
		}
		for range 5 {
			if w.pass(t); isDone {
				break
			}
		}
		const resetsSQL = "select concat_ws(' ', servers->0->>'did', servers->0->>'resets') from reservations"
		if got := testkit.Scalar[string](t, w.rows, resetsSQL); got != endsWith["ERROR"] {
			t.Errorf("done %t: stored is %q", isDone, got)
		}
		w.cloud.isLost, w.cloud.broken = false, ""
		w.becomes(t, domain.LeaseEnded)
		said := testkit.Scalar[string](t, w.rows, `select coalesce(data->'servers'->0->>'detail', '') from events
			where type = $1 and data->>'status' = 'ended'`, domain.LeaseEvent)
		if server.Status != "SHELVED_OFFLOADED" || said != endsWith["ERROR"] {
			t.Errorf("done %t: it is %s, and the event says %q", isDone, server.Status, said)
		}
	}
}

// TestStuckServer: a server that cannot be ended keeps its own host only. After a while the lease is in error and says
// why, and the host is not reservable until the server is removed; then the lease ends.
func TestStuckServer(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	r := w.lease(t, func(l *domain.Lease) {
		l.OnEnd, l.Reservations[0].Request.Min, l.Reservations[0].Request.Max = domain.OnEndShelve, 2, 2
	})
	w.becomes(t, domain.LeaseActive)
	id, host := w.cloud.launch(r.Flavors[0].ID)
	server := w.cloud.servers[id]
	server.Name, server.Status, server.Launched, w.cloud.broken = "db", "ERROR", true, id
	w.end(t)
	for range 5 {
		w.pass(t)
	}
	if held := w.held(t); !slices.Equal(held, []string{host}) {
		t.Errorf("held are %v, and the server is on %s", held, host)
	}
	lease := func() string {
		return testkit.Scalar[string](t, w.rows, "select concat_ws(' ', status, end_result, problem->>'detail') from leases")
	}
	if got := lease(); !strings.HasPrefix(got, "ending  server "+id+" (db, ERROR)") {
		t.Errorf("the lease is %q", got)
	}
	if got := testkit.Scalar[string](t, w.rows, `select string_agg(data->>'status', ' ' order by seq) from events
		where type = $1`, domain.LeaseEvent); got != "pending starting active ending ending" {
		t.Errorf("its events are %q", got)
	}
	w.exec(t, "update leases set ending_since = now() - interval '61 minutes'")
	w.pass(t)
	w.pass(t)
	if got := lease(); !strings.HasPrefix(got, "error failed the end could not be done within 1h") ||
		!strings.Contains(got, "server "+id+" (db, ERROR)") || strings.Contains(got, host) {
		t.Errorf("the lease is %q", got)
	}
	if got := testkit.Scalar[string](t, w.rows, "select pool from nodes where name = $1", host); got != "joining" {
		t.Errorf("the host is %s", got)
	}
	if w.cloud.resets != 2 || !server.Locked {
		t.Errorf("the server was made active %d times, and is %+v", w.cloud.resets, server)
	}
	delete(w.cloud.servers, id)
	w.becomes(t, domain.LeaseEnded)
	w.move(t)
	w.clean(t)
}

// TestEndOnOneDeadHost: a host that is down with a server to shelve is held until that is done, and keeps no other one.
func TestEndOnOneDeadHost(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	r := w.lease(t, func(l *domain.Lease) {
		l.OnEnd, l.Reservations[0].Request.Min, l.Reservations[0].Request.Max = domain.OnEndShelve, 3, 3
	})
	w.becomes(t, domain.LeaseActive)
	id, host := w.cloud.launch(r.Flavors[0].ID)
	w.cloud.servers[id].Launched = true
	w.down(t, host, true)
	w.end(t)
	for range 3 {
		w.pass(t)
	}
	if held := w.held(t); !slices.Equal(held, []string{host}) {
		t.Errorf("held are %v, and %s is down", held, host)
	}
	w.down(t, host, false)
	w.becomes(t, domain.LeaseEnded)
	delete(w.cloud.servers, id)
	w.clean(t)
}
