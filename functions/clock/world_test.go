package clock

import (
	"context"
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

	mu          sync.Mutex
	due         map[string][]time.Time // of each function
	reads       int
	broken      error // of the store
	unavailable map[string]error
	wakes       map[string][]time.Duration // since the begin
	failing     map[string]time.Time       // in Postgres
	failedAt    map[string]time.Time       // the last time
	failed      map[string]time.Duration   // when its monitor failed
	works       []string                   // whose monitors say that they work again
	workFor     time.Duration              // how long a function works
	leaves      map[string]time.Duration   // what a function leaves due, once
	held        map[string]time.Duration   // how long wakes of a function are held: then unavailable is their answer
	backlog     bool                       // it never does all, and has enough with two wakes
	working     int
	unknown     map[string]bool // functions that have never run, and have nothing else due
	hanging     time.Duration   // how long a read takes
}

func newWorld() *world {
	w := &world{
		began: time.Now(), ending: make(chan struct{}), due: map[string][]time.Time{}, unavailable: map[string]error{},
		wakes: map[string][]time.Duration{}, failing: map[string]time.Time{}, failedAt: map[string]time.Time{},
		failed: map[string]time.Duration{},
		leaves: map[string]time.Duration{}, held: map[string]time.Duration{}, unknown: map[string]bool{},
	}
	w.service = newService(w, w, w.wakeFunction)
	return w
}

func (w *world) add(function string, in time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due[function] = append(w.due[function], time.Now().Add(in))
}

func (w *world) set(function string, unavailable error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unavailable[function] = unavailable
}

// hold has wakes of a function held: it gets none of them, and what is due stays so.
func (w *world) hold(function string, long time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[function] = long
}

func (w *world) NextDue(ctx context.Context, within time.Duration) (all []due.Waiting, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if w.hanging > 0 {
		hanging := w.hanging
		w.mu.Unlock()
		isOver := flow.Sleep(ctx, hanging)
		w.mu.Lock()
		if !isOver {
			return nil, ctx.Err()
		}
	}
	for _, function := range slices.Sorted(maps.Keys(w.due)) {
		_, isFailing := w.failing[function]
		waiting := due.Waiting{
			Function: function, In: time.Hour, Newest: -time.Hour * 1e5, IsFailing: isFailing,
			IsUnregistered: w.unknown[function],
		}
		for _, at := range w.due[function] {
			in := time.Until(at)
			if waiting.In = min(waiting.In, in); in <= 0 {
				waiting.Newest = max(waiting.Newest, in)
			}
			if in > 0 && in <= within && (waiting.Later == nil || in < *waiting.Later) {
				waiting.Later = &in
			}
		}
		if waiting.In <= within {
			all = append(all, waiting)
		}
		if _, isFailing := w.failing[function]; isFailing && waiting.In > within &&
			time.Since(w.failedAt[function]) > 2*time.Minute {
			all = append(all, due.Waiting{Function: function, IsFailing: true, IsForgotten: true})
		}
	}
	return all, w.broken
}

// wakeFunction does what is due of the function.
func (w *world) wakeFunction(ctx context.Context, function string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakes[function] = append(w.wakes[function], time.Since(w.began).Round(time.Millisecond))
	if held := w.held[function]; held > 0 {
		w.mu.Unlock()
		flow.Sleep(ctx, held)
		w.mu.Lock()
	}
	if err := w.unavailable[function]; err != nil {
		return err
	}
	if !w.backlog {
		w.due[function] = slices.DeleteFunc(w.due[function], func(at time.Time) bool { return !at.After(time.Now()) })
	}
	if in, isSet := w.leaves[function]; isSet {
		delete(w.leaves, function)
		w.due[function] = append(w.due[function], time.Now().Add(in))
	}
	if w.backlog && w.working == 2 {
		return nil
	}
	if w.workFor > 0 {
		w.working++
		defer func() { w.working-- }()
		w.mu.Unlock()
		flow.Sleep(ctx, w.workFor)
		w.mu.Lock()
	}
	return nil
}

func (w *world) WakeFailed(_ context.Context, function string, since time.Duration, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failedAt[function] = time.Now()
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
	_, wasFailing := w.failing[function]
	delete(w.failing, function)
	if _, isReported := w.failed[function]; isReported && wasFailing {
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
