package process_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongLeaseEnds: on_end stop and delete, and one that is changed to a deletion while the lease is active. What
// snapshot_delete leaves is shown by TestLongSnapshotsOfNamesakes.
func TestLongLeaseEnds(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	l := newLessee(t, nil)
	leases, servers := map[string]string{}, map[string]string{}
	for _, name := range []string{"stop", "delete", "changed"} {
		instance, server := l.launch(t, "")
		onEnd := name
		if name == "changed" {
			onEnd = "shelve"
		}
		lease := l.lease(t, fmt.Sprintf(`{"name": %q, "duration": "PT1H", "on_end": %q,
			"reservations": [{"type": "instance", "instance_id": %q}]}`, name, onEnd, instance))
		leases[name], servers[name] = lease.ID, server
	}
	for _, id := range leases {
		l.becomes(t, id, domain.LeaseActive)
	}
	if a := l.client().Do(t, http.MethodPatch, "/v1/leases/"+leases["changed"], `{"on_end": "delete"}`,
		"Content-Type", "application/json"); a.Status != http.StatusOK {
		t.Errorf("change: %d %s", a.Status, a.Body)
	}
	for _, id := range leases {
		l.at(t, id,
			"starts_at = clock_timestamp() - interval '3 hours', ends_at = clock_timestamp() - interval '1 hour'")
	}
	for name, id := range leases {
		l.becomes(t, id, domain.LeaseEnded)
		if got := l.events(t, id); got != "pending starting active ending ended" {
			t.Errorf("%s: its events are %q", name, got)
		}
	}
	l.Await(t, servers["stop"], "SHUTOFF")
	l.Await(t, servers["delete"], "DELETED")
	l.Await(t, servers["changed"], "DELETED")
}

// TestLongDeadHost: a free host takes the place of one that an admin has forced down, immediately; without another one
// the lease is degraded until the host is up.
func TestLongDeadHost(t *testing.T) {
	t.Parallel()
	hosts := testkit.ReservableHosts(t)
	l := newLessee(t, map[string]string{"LEASES_HEAL_AFTER": "1h", "NODES_DOWN_AFTER": "1h"})
	l.reserve(t, hosts...)
	lease := l.reserveHost(t)
	id := lease.ID.String()
	l.becomes(t, id, domain.LeaseActive)
	held := func() []string {
		return testkit.Scalar[[]string](t, l.conn,
			"select array_agg(node) from allocations where released_at is null and prepared_at is not null")
	}
	until := func(what string, ok func() bool) {
		testkit.Eventually(t, 3*time.Minute, what, func() bool {
			if _, err := l.conn.Exec(context.Background(), `
update leases set due_at = clock_timestamp() where due_at is not null and claim_id is null`); err != nil {
				t.Fatal(err)
			}
			l.tick()
			return ok()
		})
	}
	was := held()[0]
	testkit.ForceDown(t, was, true)
	until("the other host is the lease's", func() bool { now := held(); return len(now) == 1 && now[0] != was })
	aggregates, err := admin(t).Aggregates(t.Context())
	if err != nil || !slices.ContainsFunc(aggregates, func(a domain.Aggregate) bool {
		return a.Name == "cloudfn-lease-"+lease.Reservations[0].ID.String() && slices.Equal(a.Hosts, held())
	}) {
		t.Errorf("the aggregates are %+v: %v", aggregates, err)
	}
	testkit.ForceDown(t, held()[0], true)
	until("the lease is degraded", func() bool { return l.show(t, id).Degraded })
	testkit.ForceDown(t, held()[0], false)
	until("the lease is whole", func() bool { return !l.show(t, id).Degraded })
	if got := l.events(t, id); got != "pending starting active active active active" {
		t.Errorf("its events are %q: %s", got, testkit.Scalar[string](t, l.conn,
			"select string_agg(data::text, ' ' order by seq) from events where subject = $1", id))
	}
	l.at(t, id, "ends_at = clock_timestamp()")
	l.becomes(t, id, domain.LeaseEnded)
	if left := l.leftOf(t, lease.Reservations[0].ID.String()); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// TestLongSnapshotsOfNamesakes: two servers of one name on a reserved host, and two leased instances of one name, end
// as an image each, whose project they are.
func TestLongSnapshotsOfNamesakes(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	hosts := testkit.ReservableHosts(t)
	l := newLessee(t, nil)
	t.Cleanup(func() { l.DeleteImages(t) })
	l.reserve(t, hosts[0])
	hostLease := l.lease(t, fmt.Sprintf(`{"name": "hosts", "duration": "PT1H", "on_end": "snapshot_delete",
		"reservations": [{"type": "host", "min": 1, "flavors": [%q]}]}`, testkit.Sandbox(t).FlavorID))
	reservation := l.becomes(t, hostLease.ID, domain.LeaseActive).Reservations[0].ID
	servers, instances := map[string][]string{}, []string{}
	for range 2 {
		_, reserved := l.launch(t, fmt.Sprintf(`, "reservation_id": %q`, reservation))
		instance, server := l.launch(t, "")
		servers[hostLease.ID] = append(servers[hostLease.ID], reserved)
		servers[""] = append(servers[""], server)
		instances = append(instances, instance)
	}
	instanceLease := l.lease(t, fmt.Sprintf(`{"name": "instances", "duration": "PT1H", "on_end": "snapshot_delete",
		"reservations": [{"type": "instance", "instance_id": %q}, {"type": "instance", "instance_id": %q}]}`,
		instances[0], instances[1]))
	l.becomes(t, instanceLease.ID, domain.LeaseActive)
	servers[instanceLease.ID] = servers[""]
	for _, id := range []string{hostLease.ID, instanceLease.ID} {
		l.at(t, id, "ends_at = clock_timestamp()")
	}
	for _, id := range []string{hostLease.ID, instanceLease.ID} {
		l.becomes(t, id, domain.LeaseEnded)
		images, err := l.Session(t).Images(t.Context(), "leased-"+id)
		of := []string{}
		for _, image := range images {
			if image.Status == "active" && image.ProjectID == l.ID {
				of = append(of, image.ServerID)
			}
		}
		slices.Sort(of)
		slices.Sort(servers[id])
		if err != nil || !slices.Equal(of, servers[id]) {
			t.Errorf("the images are of %v, want %v: %+v, %v", of, servers[id], images, err)
		}
		for _, server := range servers[id] {
			l.Await(t, server, "DELETED")
		}
	}
}

// exec changes the database as time or a fault would.
func (l *lessee) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := l.conn.Exec(context.Background(), sql); err != nil {
		t.Fatal(err)
	}
}

// active has a server in a lease that has begun.
func (l *lessee) active(t *testing.T) (lease shownLease, server string) {
	t.Helper()
	instance, server := l.launch(t, "")
	lease = l.lease(t, fmt.Sprintf(`{"name": "leased", "duration": "PT1H",
		"reservations": [{"type": "instance", "instance_id": %q}]}`, instance))
	return l.becomes(t, lease.ID, domain.LeaseActive), server
}

// TestLongLostDelegation: when Keystone does not accept the trust any more, the lease is in error with one event, the
// instance stays, and run-leases leaves the lease alone until its end.
func TestLongLostDelegation(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *lessee){
		"its user is disabled":  func(t *testing.T, l *lessee) { l.Disable(t); t.Cleanup(func() { l.Enable(t) }) },
		"its trust is deleted":  func(t *testing.T, l *lessee) { l.DropTrust(t, l.TrustsForAdmin(t)[0]) },
		"its user has no roles": func(t *testing.T, l *lessee) { l.Leave(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLessee(t, nil)
			lease, server := l.active(t)
			lose(t, l)
			l.exec(t, "update connections set next_check_at = clock_timestamp(), checked_at = null")
			testkit.Eventually(t, 3*time.Minute, "the lease is in error", func() bool {
				l.wake("run-connections")
				return strings.HasSuffix(l.events(t, lease.ID), " error")
			})
			const row = "select concat(l.xmin, ' ', l.problem->>'code') from leases l where id = $1"
			before := testkit.Scalar[string](t, l.conn, row, lease.ID)
			for range 3 {
				l.process.Tick(t, "run-leases")
			}
			if after := testkit.Scalar[string](t, l.conn, row, lease.ID); after != before ||
				!strings.HasSuffix(after, " delegation_lost") {
				t.Errorf("three ticks later the row is %s, it was %s", after, before)
			}
			if got, want := l.events(t, lease.ID), "pending starting active error"; got != want {
				t.Errorf("its events are %q, want %q", got, want)
			}
			if s, err := admin(t).Server(t.Context(), server); err != nil || s.Status != "ACTIVE" {
				t.Errorf("the server is %s: %v", s.Status, err)
			}
		})
	}
}

// TestLongLateEnd: run-leases and run-connections sleep from before the end of a lease until three hours after it. The
// next tick ends it.
func TestLongLateEnd(t *testing.T) {
	t.Parallel()
	l := newLessee(t, nil)
	lease, server := l.active(t)
	l.exec(t, `
update connections c set expires_at = c.expires_at - (l.ends_at - (clock_timestamp() - interval '3 hours'))
from leases l where l.connection_id = c.id`)
	l.at(t, lease.ID,
		"starts_at = clock_timestamp() - interval '4 hours', ends_at = clock_timestamp() - interval '3 hours'")
	l.wake("run-connections")
	l.becomes(t, lease.ID, domain.LeaseEnded)
	l.Await(t, server, "SHELVED_OFFLOADED")
	if got, want := l.events(t, lease.ID), "pending starting active ending ended"; got != want {
		t.Errorf("its events are %q, want %q", got, want)
	}
}

// TestLongDoubledTicks: two replicas of all functions get every tick twice, and early: Nova is called once for each
// step, and each event is written once.
func TestLongDoubledTicks(t *testing.T) {
	t.Parallel()
	l := newLessee(t, nil)
	second := testkit.Spawn(t, l.env)
	instance, server := l.launch(t, "")
	lease := l.lease(t, fmt.Sprintf(`{"name": "doubled", "start": %q, "duration": "PT1H",
		"reservations": [{"type": "instance", "instance_id": %q}]}`,
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339), instance))
	ticks := func() {
		var all sync.WaitGroup
		for n := range 4 {
			all.Go(func() { ping([]*testkit.Process{l.process, second}[n%2], "run-leases") })
		}
		all.Wait()
		time.Sleep(time.Second)
	}
	become := func(status domain.LeaseStatus) {
		testkit.Eventually(t, 4*time.Minute, "the lease is "+string(status), func() bool {
			ticks()
			return l.show(t, lease.ID).Status == string(status)
		})
	}
	ticks() // early
	l.Await(t, server, "SHELVED_OFFLOADED")
	ticks() // early
	l.at(t, lease.ID, "starts_at = clock_timestamp()")
	become(domain.LeaseActive)
	ticks() // early
	l.at(t, lease.ID, "ends_at = clock_timestamp()")
	become(domain.LeaseEnded)
	if got, want := l.events(t, lease.ID), "pending starting active ending ended"; got != want {
		t.Errorf("its events are %q, want %q", got, want)
	}
	log, err := admin(t).Actions(t.Context(), server)
	done := map[string]int{}
	for _, a := range log {
		done[a.Name]++
	}
	if diff := cmp.Diff(map[string]int{"create": 1, "shelve": 2, "unshelve": 1}, without(done, "shelveOffload")); diff != "" {
		t.Errorf("what Nova has done: %s %v", diff, err)
	}
}

func without(counts map[string]int, name string) map[string]int {
	delete(counts, name)
	return counts
}

// TestLongDeletedByItsOwner: a lease ends when its server is deleted in Nova, without a tick of run-leases after
// that is known.
func TestLongDeletedByItsOwner(t *testing.T) {
	t.Parallel()
	l := newLessee(t, nil)
	lease, server := l.active(t)
	l.Delete(t, server)
	testkit.Eventually(t, 3*time.Minute, "the lease has ended", func() bool {
		l.wake("poll-instances")
		l.tick()
		return l.show(t, lease.ID).Status == "ended"
	})
	if got, want := l.events(t, lease.ID), "pending starting active ending ended"; got != want {
		t.Errorf("its events are %q, want %q", got, want)
	}
}

// TestLongLeaseTrustSurvivesKill kills a process after Keystone has made the trust of a lease and before it has said
// so. No lease is stored, the trust is taken back, and the same request makes one lease later.
func TestLongLeaseTrustSurvivesKill(t *testing.T) {
	t.Parallel()
	l := newLessee(t, nil)
	instance, _ := l.launch(t, "")
	request := fmt.Sprintf(`{"id": %q, "name": "leased", "duration": "PT1H",
		"reservations": [{"type": "instance", "instance_id": %q}]}`, uuid.NewString(), instance)
	env, made := muteKeystone(t)
	env["FUNCTION_TARGET"] = "leases"
	victim := testkit.Spawn(t, testkit.Env(t, l.database, env))
	var answered sync.WaitGroup
	answered.Go(func() {
		_, _ = victim.As(l.token).Try(t, "POST", "/v1/leases", request, "Content-Type", "application/json")
	})
	testkit.Eventually(t, time.Minute, "Keystone has made the trust", func() bool { return made.Load() == 1 })
	victim.Kill()
	answered.Wait()
	stored := testkit.Scalar[int](t, l.conn, "select count(*)::int from leases")
	if trusts := l.TrustsForAdmin(t); len(trusts) != 1 || stored != 0 {
		t.Fatalf("Keystone has the trusts %v, and %d leases are stored", trusts, stored)
	}
	l.exec(t, "update trusts_to_revoke set not_before = not_before - interval '5 minutes'")
	testkit.Eventually(t, time.Minute, "the trust is taken back", func() bool {
		l.wake("run-connections")
		return len(l.TrustsForAdmin(t)) == 0
	})
	l.becomes(t, l.lease(t, request).ID, domain.LeaseActive)
	if trusts := l.TrustsForAdmin(t); len(trusts) != 1 {
		t.Errorf("Keystone has the trusts %v", trusts)
	}
}
