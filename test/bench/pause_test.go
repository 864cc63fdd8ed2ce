//go:build bench

package bench

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const paused = 20 // streams whose first event is rejected once

// TestPause rejects the first attempt of 20 events with 500, and holds the time to the second one against the pause
// that was computed. The daemon's own ticker wakes deliver-events, once, when the daemon starts.
func TestPause(t *testing.T) {
	var mu sync.Mutex
	attempts := map[string][]time.Time{} // by subject
	receiver := testkit.NewReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		subject := r.Header.Get("Ce-Subject")
		if attempts[subject] = append(attempts[subject], time.Now()); len(attempts[subject]) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	testkit.AddCallback(t, conn, "bench", receiver.URL, "verified", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", "")
	subjects := make([]string, paused)
	for i := range subjects {
		subjects[i] = uuid.NewString()
	}
	testkit.AddEvents(t, conn, "bench", subjects, 1)
	if now := time.Now(); now.Second() > 35 { // no other tick comes during the pause
		time.Sleep(time.Until(now.Truncate(time.Minute).Add(time.Minute + time.Second)))
	}
	testkit.Spawn(t, testkit.Env(t, database, nil))
	count := func(sql string) int { return testkit.Scalar[int](t, conn, sql) }
	testkit.Eventually(t, time.Minute, "each was rejected", func() bool {
		return count("select count(*)::int from streams where attempts = 1") == paused
	})
	computed := map[string]float64{} // ms
	for _, subject := range subjects {
		computed[subject] = 1000 * testkit.Scalar[float64](t, conn, `
select extract(epoch from s.next_at - d.attempted_at)::float8
from streams s join deliveries d using (project_id, callback_id, stream) where d.subject = $1`, subject)
	}
	testkit.Eventually(t, 2*time.Minute, "each is delivered", func() bool {
		return count("select count(*)::int from deliveries where status = 'delivered'") == paused
	})
	var ratios, took, pauses []float64
	mu.Lock()
	defer mu.Unlock()
	for subject, at := range attempts {
		between := ms(at[1].Sub(at[0]))
		took, pauses = append(took, between), append(pauses, computed[subject])
		ratios = append(ratios, between/computed[subject])
	}
	report(result{
		number: "9c", name: fmt.Sprintf("from a first 500 to the second attempt, worst of %d : the computed pause",
			paused),
		ours: showMS(percentile(took, 100)), peer: showMS(percentile(pauses, 100)), ratio: percentile(ratios, 100),
		target: atMost(1.2),
	})
}
