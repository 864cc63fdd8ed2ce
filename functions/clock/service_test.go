package clock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// world is what is due in memory, by the fake clock of synctest, and functions that do it when they are woken.
// Postgres has its own tests of the statement.
type world struct {
	*service
	began  time.Time
	ending chan struct{}

	mu      sync.Mutex
	due     map[string][]time.Time // of each function
	reads   int
	broken  error // of the store
	away    map[string]error
	wakes   map[string][]time.Duration // since the begin
	failing map[string]time.Time       // in Postgres
	failed  map[string]time.Duration   // when its monitor failed
	works   []string                   // whose monitors say that they work again
	workFor time.Duration              // how long a function works
	leaves  map[string]time.Duration   // what a function leaves due, once
}

func newWorld() *world {
	w := &world{
		began: time.Now(), ending: make(chan struct{}), due: map[string][]time.Time{}, away: map[string]error{},
		wakes: map[string][]time.Duration{}, failing: map[string]time.Time{}, failed: map[string]time.Duration{},
		leaves: map[string]time.Duration{},
	}
	w.service = newService(w, w, w.wakeFunction)
	return w
}

func (w *world) add(function string, in time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due[function] = append(w.due[function], time.Now().Add(in))
}

func (w *world) set(function string, away error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away[function] = away
}

func (w *world) NextDue(_ context.Context, within time.Duration) (all []due.Waiting, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	for _, function := range slices.Sorted(maps.Keys(w.due)) {
		if moments := w.due[function]; len(moments) > 0 {
			if in := time.Until(slices.MinFunc(moments, time.Time.Compare)); in <= within {
				_, isFailing := w.failing[function]
				all = append(all, due.Waiting{Function: function, In: in, IsFailing: isFailing})
			}
		}
	}
	return all, w.broken
}

// wakeFunction does what is due of the function.
func (w *world) wakeFunction(ctx context.Context, function string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakes[function] = append(w.wakes[function], time.Since(w.began).Round(time.Millisecond))
	if err := w.away[function]; err != nil {
		return err
	}
	w.due[function] = slices.DeleteFunc(w.due[function], func(at time.Time) bool { return !at.After(time.Now()) })
	if in, isSet := w.leaves[function]; isSet {
		delete(w.leaves, function)
		w.due[function] = append(w.due[function], time.Now().Add(in))
	}
	if w.workFor > 0 {
		w.mu.Unlock()
		flow.Sleep(ctx, w.workFor)
		w.mu.Lock()
	}
	return nil
}

func (w *world) WakeFailed(_ context.Context, function string, since time.Duration, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, isKnown := w.failing[function]; !isKnown {
		w.failing[function] = time.Now().Add(-since)
	}
	if _, isReported := w.failed[function]; !isReported && time.Since(w.failing[function]) >= 3*time.Minute {
		w.failed[function] = time.Since(w.began)
	}
	return nil
}

func (w *world) Woken(_ context.Context, function string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.failing, function)
	if _, isReported := w.failed[function]; isReported {
		w.works = append(w.works, function)
	}
	return nil
}

// handle sends an event.
func (w *world) handle(t *testing.T, event cloudevents.Event) error {
	t.Helper()
	return w.Handle(flow.WithEnding(t.Context(), w.ending), event)
}

// tick sends what the PingSource sends, in the background.
func (w *world) tick(t *testing.T) {
	t.Helper()
	go func() {
		if err := w.handle(t, eventx.Ping("clock", "", time.Now())); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
}

// run lets minutes pass, with a tick in each, from the given ones on left out.
func (w *world) run(t *testing.T, minutes int, lost ...int) {
	t.Helper()
	for n := range minutes {
		if !slices.Contains(lost, n) {
			w.tick(t)
		}
		time.Sleep(time.Minute)
	}
	synctest.Wait()
}

// end has the process end, as a test does whose clock has planned something.
func (w *world) end() { close(w.ending) }

func (w *world) want(t *testing.T, function string, want ...time.Duration) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.wakes[function]; !slices.Equal(got, want) {
		t.Errorf("%s was woken at %v, want %v", function, got, want)
	}
}

const s = time.Second

// TestNothingDue: a tick is one statement, and wakes no function. What is due after the next tick is left to that.
func TestNothingDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-leases", time.Hour)
		if err := w.handle(t, eventx.Ping("clock", "", time.Now())); err != nil || time.Since(w.began) != 0 {
			t.Errorf("got %v after %s", err, time.Since(w.began))
		}
		if w.reads != 1 || len(w.wakes) != 0 {
			t.Errorf("%d statements, woken were %v", w.reads, w.wakes)
		}
	})
}

// TestDueWakesItsFunction: what is due wakes its function, and no other, now or when it is due before the next tick.
func TestDueWakesItsFunction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-leases", -time.Hour)
		w.add("watch-nodes", 32*s)
		w.add("deliver-events", 50*s)
		w.add("collect-stats", 70*s)
		w.run(t, 3)
		w.want(t, "run-leases", 0)
		w.want(t, "watch-nodes", 32*s)
		w.want(t, "deliver-events", 50*s)
		w.want(t, "collect-stats", 70*s)
		w.want(t, "poll-instances")
		if w.reads > 12 {
			t.Errorf("%d statements in three minutes", w.reads)
		}
	})
}

// TestLeftForLater: what a function leaves for later in the minute wakes it then, whether the clock has woken it, or
// another function has and it wakes the clock at its end. That wake is answered immediately.
func TestLeftForLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("deliver-events", 0)
		w.leaves["deliver-events"] = 20 * s
		w.tick(t)
		time.Sleep(30 * s)
		w.add("run-leases", 25*s)
		began := time.Now()
		if err := w.handle(t, eventx.Wake("clock", "", time.Now())); err != nil || time.Since(began) != 0 {
			t.Errorf("the wake took %s: %v", time.Since(began), err)
		}
		time.Sleep(30 * s)
		w.want(t, "deliver-events", 0, 20*s)
		w.want(t, "run-leases", 55*s)
	})
}

// TestTicks that are doubled, late and overlapping wake a function once for what is due. After an hour without any,
// the first one wakes all.
func TestTicks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.workFor = 20 * s // nothing is done before the second tick comes
		w.add("run-leases", 0)
		w.tick(t)
		w.add("run-leases", 0) // as long as the function works, it is still due
		w.due["run-leases"][0] = w.began.Add(-s)
		w.tick(t)
		time.Sleep(5 * s)
		w.tick(t) // late
		w.want(t, "run-leases", 0)
		time.Sleep(time.Hour) // no tick
		clear(w.wakes)
		for n := range 7 {
			w.add(fmt.Sprint("function ", n), -time.Duration(n)*10*time.Minute)
		}
		begin := time.Since(w.began)
		w.tick(t)
		for n := range 7 {
			w.want(t, fmt.Sprint("function ", n), begin)
		}
		time.Sleep(time.Minute)
	})
}

// TestLostTick: what a lost tick would have woken is woken by the next one.
func TestLostTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.run(t, 1)
		w.add("run-leases", 10*s)
		w.run(t, 3, 0)
		w.want(t, "run-leases", 120*s)
	})
}

// TestCannotBeWoken: a wake is repeated within the minute, and by the next ticks. A monitor says so after three
// minutes, and that the function can be woken again. The others are woken meanwhile.
func TestCannotBeWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("run-leases", errors.New("connection refused"))
		w.add("run-leases", 0)
		w.add("watch-nodes", 5*s)
		w.run(t, 1)
		w.want(t, "run-leases", 0, s, 4*s, 14*s, 34*s)
		w.want(t, "watch-nodes", 5*s)
		if len(w.failed) != 0 {
			t.Errorf("after a minute a monitor says %v", w.failed)
		}
		w.run(t, 3)
		if at := w.failed["run-leases"]; at < 3*time.Minute || at > 3*time.Minute+10*s {
			t.Errorf("the monitor failed at %s", at)
		}
		w.set("run-leases", nil)
		w.run(t, 1)
		if !slices.Equal(w.works, []string{"run-leases"}) || len(w.failing) != 0 {
			t.Errorf("again work %v; still failing are %v", w.works, w.failing)
		}
	})
}

// TestWorkFailed: a function that was woken and could not do its work can be woken. It is woken by the next tick.
func TestWorkFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("run-leases", fmt.Errorf("%w: 503", eventx.ErrNotDone))
		w.add("run-leases", 0)
		w.run(t, 2)
		w.want(t, "run-leases", 0, 60*s)
		if len(w.failing) != 0 {
			t.Errorf("failing are %v", w.failing)
		}
	})
}

// TestPostgresAway: a tick that cannot read fails, so that it is sent again. What is planned is read again soon.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-leases", 20*s)
		w.tick(t)
		time.Sleep(10 * s)
		w.mu.Lock()
		w.broken = errors.New("postgres is unavailable")
		w.mu.Unlock()
		if err := w.handle(t, eventx.Ping("clock", "", time.Now())); !errors.Is(err, w.broken) {
			t.Errorf("got %v", err)
		}
		time.Sleep(12 * s)
		w.mu.Lock()
		w.broken = nil
		w.mu.Unlock()
		time.Sleep(30 * s)
		w.want(t, "run-leases", 25*s)
	})
}

// TestEndOfTheProcess ends the wait of a tick, and what is planned: the next process reads it anew.
func TestEndOfTheProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-leases", 40*s)
		go func() {
			time.Sleep(10 * s)
			w.end()
		}()
		if err := w.handle(t, eventx.Ping("clock", "", time.Now())); err != nil || time.Since(w.began) != 10*s {
			t.Errorf("got %v after %s", err, time.Since(w.began))
		}
		time.Sleep(time.Minute)
		w.want(t, "run-leases")
		other := newWorld() // as the pod that comes after one that was killed
		other.due = w.due
		other.run(t, 1)
		other.want(t, "run-leases", 0)
	})
}
