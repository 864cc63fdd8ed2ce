//go:build bench

package bench

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	callbacks    = 1000
	callbackTime = time.Second // what each receiver takes
	deadEach     = 10          // one in so many is dead
	workers      = 100         // of deliver-events

	callbackSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
)

// audience are the receivers of all callbacks, on one port: /{n} takes its time, /dead/{n} takes the connection and
// never answers.
type audience struct {
	*httptest.Server
	mu    sync.Mutex
	taken map[string]time.Time
}

func newAudience(t *testing.T) *audience {
	t.Helper()
	c := &audience{taken: map[string]time.Time{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /dead/{n}", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server see that the client hangs up
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /{n}", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(callbackTime)
		c.mu.Lock()
		c.taken[r.PathValue("n")] = time.Now()
		c.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	})
	c.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

// TestCallbacks makes one event for 1000 callbacks, with and without dead receivers among them. It compares the time
// until all live receivers have it with the least time for so many parallel attempts.
func TestCallbacks(t *testing.T) {
	var healthy, mixed round
	alternate(2, func() { healthy.run(t, 0) }, func() { mixed.run(t, deadEach) })
	ideal := float64(callbacks) / workers * ms(callbackTime)
	last := median(mixed.last)
	name := fmt.Sprintf("%d callbacks of %s, 1 in %d dead, until the others have the event : ideal of %d concurrently",
		callbacks, callbackTime, deadEach, workers)
	compare("9a", name, last, ideal, showMS, atMost(1.2))
	with, without := median(mixed.mean), median(healthy.mean)
	compare("9b", "the same, what a healthy one waits on average : without dead ones", with, without, showMS,
		atMost(1.1))
}

// round is how long the healthy ones waited, on average and at most, each time.
type round struct{ mean, last []float64 }

func (r *round) run(t *testing.T, dead int) {
	c, db := newAudience(t), newRig(t)
	living := 0
	for n := range callbacks {
		path := fmt.Sprintf("/%d", n)
		if dead > 0 && n%dead == 0 {
			path = "/dead" + path
		} else {
			living++
		}
		testkit.AddCallback(t, db.Conn, "bench", c.URL+path, "verified", callbackSecret, "")
	}
	p := testkit.Spawn(t, testkit.Env(t, db.url, map[string]string{
		"FUNCTION_TARGET": "deliver-events",
	}))
	testkit.AddEvents(t, db.Conn, "bench", []string{uuid.NewString()}, 1)
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = p.TryTick(t, "deliver-events")
	}()
	delivered := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.taken)
	}
	for end := time.Now().Add(time.Minute); delivered() < living && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if n := delivered(); n != living {
		t.Errorf("%d of %d healthy receivers have the event", n, living)
	}
	var sum, last time.Duration
	c.mu.Lock()
	for _, at := range c.taken {
		sum += at.Sub(began)
		last = max(last, at.Sub(began))
	}
	c.mu.Unlock()
	p.Kill()
	<-done
	r.mean, r.last = append(r.mean, ms(sum)/float64(living)), append(r.last, ms(last))
}

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
	db := newRig(t)
	testkit.AddCallback(t, db.Conn, "bench", receiver.URL, "verified", callbackSecret, "")
	subjects := make([]string, paused)
	for i := range subjects {
		subjects[i] = uuid.NewString()
	}
	testkit.AddEvents(t, db.Conn, "bench", subjects, 1)
	if now := time.Now(); now.Second() > 35 { // no other tick comes during the pause
		time.Sleep(time.Until(now.Truncate(time.Minute).Add(time.Minute + time.Second)))
	}
	testkit.Spawn(t, testkit.Env(t, db.url, nil))
	testkit.Eventually(t, time.Minute, "each was rejected", func() bool {
		return db.count("select count(*)::int from streams where attempts = 1") == paused
	})
	computed := map[string]float64{} // ms
	for _, subject := range subjects {
		computed[subject] = 1000 * testkit.Scalar[float64](t, db.Conn, `
select extract(epoch from s.next_at - d.attempted_at)::float8
from streams s join deliveries d using (project_id, callback_id, stream) where d.subject = $1`, subject)
	}
	testkit.Eventually(t, 2*time.Minute, "each is delivered", func() bool {
		return db.count("select count(*)::int from deliveries where status = 'delivered'") == paused
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
