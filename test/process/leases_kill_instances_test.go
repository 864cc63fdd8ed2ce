package process_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// strike kills the process at random moments, each time while run-leases and run-connections work, and starts it anew.
func (l *lessee) strike(t *testing.T, kills int) {
	t.Helper()
	for range kills {
		l.wake("run-leases")
		l.wake("run-connections")
		time.Sleep(rand.N(2 * time.Second)) // it has worked for two seconds already
		l.process.Kill()
		l.process = testkit.Spawn(t, l.env)
	}
}

// TestLongInstanceLeasesSurviveKills: run-leases and run-connections are killed at random moments while leases of
// instances are prepared, start and end. Each ends as it should, nothing is done twice, and no trust is left.
func TestLongInstanceLeasesSurviveKills(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	l := newLessee(t, map[string]string{"LEASES_CLAIM": "3s"})
	ids, servers := []string{}, []string{}
	for n := range 2 {
		instance, server := l.launch(t, "")
		lease := l.lease(t, fmt.Sprintf(`{"name": "killed %d", "start": %q, "duration": "PT1H",
			"reservations": [{"type": "instance", "instance_id": %q}]}`, n,
			time.Now().Add(time.Hour).UTC().Format(time.RFC3339), instance))
		ids, servers = append(ids, lease.ID), append(servers, server)
	}
	are := func(status domain.LeaseStatus, inNova string) {
		t.Helper()
		l.strike(t, 3)
		for n, id := range ids {
			testkit.Eventually(t, 3*time.Minute, "the server is "+inNova, func() bool {
				l.wake("run-connections")
				l.tick()
				s, err := admin(t).Server(t.Context(), servers[n])
				return err == nil && s.Status == inNova
			})
			l.becomes(t, id, status)
		}
	}
	are(domain.LeasePending, "SHELVED_OFFLOADED")
	for _, id := range ids {
		l.at(t, id, "starts_at = clock_timestamp()")
	}
	are(domain.LeaseActive, "ACTIVE")
	for _, id := range ids {
		l.at(t, id, "ends_at = clock_timestamp()")
	}
	are(domain.LeaseEnded, "SHELVED_OFFLOADED")
	for n, id := range ids {
		if got, want := l.events(t, id), "pending starting active ending ended"; got != want {
			t.Errorf("its events are %q, want %q", got, want)
		}
		log, err := admin(t).Actions(t.Context(), servers[n])
		done := map[string]int{}
		for _, a := range log {
			done[a.Name]++
		}
		if err != nil || done["shelve"] != 2 || done["unshelve"] != 1 {
			t.Errorf("Nova has done %v: %v; want 2 shelve and 1 unshelve", done, err)
		}
	}
	testkit.Eventually(t, 2*time.Minute, "the trusts are gone", func() bool {
		l.wake("run-connections")
		l.tick()
		return len(l.TrustsForAdmin(t)) == 0
	})
}
