package deliverevents

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// failOnce is a receiver that answers the first attempt of each event with 500.
func failOnce(t *testing.T) *testkit.Receiver {
	t.Helper()
	var seen sync.Map
	var r *testkit.Receiver
	r = testkit.NewReceiver(t, func(w http.ResponseWriter, req *http.Request) {
		if _, again := seen.LoadOrStore(req.Header.Get("Ce-Id"), true); !again {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		r.TakeRequest(req)
	})
	return r
}

// endPause waits until an attempt has failed, and ends its pause by the database's clock.
func endPause(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "an attempt fails, and its pause begins", func() bool {
		return testkit.Scalar[bool](t, conn,
			"select exists (select from streams where attempts > 0 and next_at > now() + interval '3 seconds')")
	})
	skipPauses(t, conn)
}

// TestPauseIsKept: a stream whose events fail once each is delivered by one event: the loop that recorded a pause also
// makes the next attempt. No tick and no wake comes meanwhile, and the test ends each pause.
func TestPauseIsKept(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	r := failOnce(t)
	testkit.AddCallback(t, conn, project, r.URL, domain.CallbackVerified, secret(), "")
	instance := subjects(1)
	testkit.AddEvents(t, conn, project, instance, 3)
	p := testkit.Spawn(t, env(t, database, "EVENT_TIMEOUT", "5m"))
	var tick sync.WaitGroup
	tick.Go(func() { p.Tick(t, "deliver-events") })
	for range 3 {
		endPause(t, conn)
	}
	complete(t, time.Minute, r, instance, 3)
	tick.Wait()
	if n := r.Posts(); n != 6 {
		t.Errorf("it got %d posts, want 6", n)
	}
}

// TestPauseHasSuccessor: while an event waits for the end of a pause, one more waits to continue when its time has
// passed. Further ones are answered immediately.
func TestPauseHasSuccessor(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	r := failOnce(t)
	testkit.AddCallback(t, conn, project, r.URL, domain.CallbackVerified, secret(), "")
	instance := subjects(1)
	testkit.AddEvents(t, conn, project, instance, 1)
	p := testkit.Spawn(t, env(t, database, "EVENT_TIMEOUT", "5m"))
	var ticks sync.WaitGroup
	var answered atomic.Int32
	tick := func() {
		if a := p.Tick(t, "deliver-events"); a.Status != 204 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
		answered.Add(1)
	}
	ticks.Go(tick)
	testkit.Eventually(t, time.Minute, "an attempt fails", func() bool { return r.Posts() == 1 })
	ticks.Go(tick) // one of these two waits to continue, and the other one has nothing to do
	ticks.Go(tick)
	testkit.Eventually(t, time.Minute, "one is answered", func() bool { return answered.Load() > 0 })
	if n := answered.Load(); n != 1 {
		t.Errorf("%d events are answered during the pause, want 1", n)
	}
	endPause(t, conn)
	complete(t, time.Minute, r, instance, 1)
	ticks.Wait()
}

// TestPauseEndsWithTheProcess: a process that ends does not wait for a pause.
func TestPauseEndsWithTheProcess(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	bad := testkit.BadReceivers(t)["500"]
	testkit.AddCallback(t, conn, project, bad.URL, domain.CallbackVerified, secret(), "")
	testkit.AddEvents(t, conn, project, subjects(1), 1)
	p := testkit.Spawn(t, env(t, database, "EVENT_TIMEOUT", "5m"))
	var tick sync.WaitGroup
	tick.Go(func() {
		if a := p.Tick(t, "deliver-events"); a.Status != 204 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	})
	testkit.Eventually(t, time.Minute, "an attempt has failed", func() bool {
		return testkit.Scalar[int](t, conn, "select attempts from streams") == 1
	})
	if code := p.Terminate(t, time.Minute); code != 0 {
		t.Errorf("it ends with %d", code)
	}
	tick.Wait()
}
