package process_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// exec changes the database as time or a fault would.
func (l *lessee) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := l.conn.Exec(context.Background(), sql, args...); err != nil {
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
