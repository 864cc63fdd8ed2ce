package clock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// store reads which functions have something due.
type store interface {
	NextDue(ctx context.Context, within time.Duration) ([]due.Waiting, error)
}

// monitors record which functions cannot be woken.
type monitors interface {
	WakeFailed(ctx context.Context, function string, since time.Duration, reason string) error
	Woken(ctx context.Context, function string) error
}

// service plans and wakes. What it keeps in memory only spares statements and wakes: another process does without.
type service struct {
	store    store
	monitors monitors
	post     func(ctx context.Context, function string) error

	reading   sync.Mutex // one reads and sets the next moment at a time: what was read last counts
	mu        sync.Mutex
	functions map[string]*function
	next      time.Time     // when something is due; zero = nothing is planned
	until     time.Time     // when the plan ends: the next tick makes another one
	changed   chan struct{} // receives when next has changed
	planned   chan struct{} // closed when nothing is planned any more; nil = nothing is
}

// function is what the clock remembers of one.
type function struct {
	woken    time.Time   // when a wake began last, or failed; what is due since then is new
	answered time.Time   // when it answered last
	wakes    []time.Time // when those began that have no answer yet
	isHeld   bool        // it is recorded that one of them has none
	missing  int         // wakes in a row that found no such function

	recording sync.Mutex // held while it is recorded whether the function can be woken
}

func newService(s store, m monitors, post func(ctx context.Context, function string) error) *service {
	return &service{
		store: s, monitors: m, post: post, functions: map[string]*function{}, changed: make(chan struct{}, 1),
	}
}

const (
	// planFor is the time between two ticks.
	planFor = time.Minute
	// earliest is how early a tick may come for its minute: clocks differ.
	earliest = 5 * time.Second
	// wakeAgain is when a function is woken again for what was due already when it was woken the last time: a tick may
	// be doubled, and a function may not be able to do something. It counts from the end of a wake that failed.
	wakeAgain = 30 * time.Second
	// longestPause is that of a function that is not deployed.
	longestPause = 10 * time.Minute
	// heldAfter is how long a wake may have no answer while what was due at its begin still is and no other wake has
	// one: a function that has enough to do answers the third immediately.
	heldAfter = 50 * time.Second
	// slack is by how much the clocks of Postgres and of this process may differ.
	slack = time.Second
	// mostWakes are without an answer at a time.
	mostWakes = 4
	// recordTime bounds a write to the monitors: wakes do not wait for it for long.
	recordTime = 5 * time.Second
	// rereadIn is when the clock reads again that could not read what it has planned.
	rereadIn = 5 * time.Second
	readTime = 20 * time.Second
)

// retries are the pauses after wakes that failed, all within a minute.
var retries = []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, 20 * time.Second}

// nextTick is when the tick after the one that comes now is due.
func nextTick(now time.Time) time.Time {
	return now.Add(earliest).Truncate(planFor).Add(planFor)
}

// plan wakes what is due now, and has what is due later, until the next tick, woken then. planned is closed when
// nothing is planned any more.
func (s *service) plan(ctx context.Context) (planned <-chan struct{}, err error) {
	return s.planUntil(ctx, time.Now().Add(planFor))
}

// replan plans what a function has left that has ended its work.
func (s *service) replan(ctx context.Context) {
	if _, err := s.planUntil(ctx, time.Time{}); err != nil {
		slog.WarnContext(ctx, "what is due could not be read: the next tick does", "error", err)
	}
}

func (s *service) planUntil(ctx context.Context, until time.Time) (planned <-chan struct{}, err error) {
	if err := s.read(ctx, until); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.planned != nil:
		select {
		case s.changed <- struct{}{}:
		default:
		}
	case s.next.IsZero():
		nothing := make(chan struct{})
		close(nothing)
		return nothing, nil
	default:
		s.planned = make(chan struct{})
		go s.follow(context.WithoutCancel(ctx)) // the plan outlives a request
	}
	return s.planned, nil
}

// read wakes the functions that have something due, and sets when the next one has.
func (s *service) read(ctx context.Context, until time.Time) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	began := time.Now() // not later: what was due at the last wake must not look new
	limited, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	waiting, err := s.store.NextDue(limited, planFor)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = time.Time{}
	if until.After(s.until) {
		s.until = until
	}
	detached := context.WithoutCancel(ctx)
	for _, w := range waiting {
		at := began.Add(w.In)
		switch {
		case w.IsForgotten:
			go s.recordWoken(detached, s.function(w.Function), w.Function)
		case at.After(time.Now()):
			s.setNext(at)
		default:
			s.begin(detached, w, at, began.Add(w.Newest))
		}
		if w.Later != nil {
			s.setNext(began.Add(*w.Later))
		}
	}
	return nil
}

// setNext is called with mu held.
func (s *service) setNext(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// begin wakes a function that has something due since oldest, and the last of it since newest, unless it was woken for
// that. It is called with mu held.
func (s *service) begin(ctx context.Context, w due.Waiting, oldest, newest time.Time) {
	f, now := s.function(w.Function), time.Now()
	if f.isUnanswered() && now.Sub(f.wakes[0]) >= heldAfter && oldest.Before(f.wakes[0].Add(slack)) {
		f.isHeld = true
		go s.recordHeld(ctx, f, w.Function)
	}
	isNew, again := newest.After(f.woken), f.woken.Add(wakeAgain)
	if f.missing > 0 && w.IsUnregistered {
		isNew, again = false, f.woken.Add(flow.Backoff(wakeAgain, longestPause, f.missing))
	}
	switch {
	case len(f.wakes) == mostWakes:
		s.setNext(now.Add(wakeAgain))
	case isNew || !now.Before(again):
		f.woken = now
		f.wakes = append(f.wakes, now)
		go s.wake(ctx, f, w, now)
	default:
		s.setNext(again)
	}
}

// function is called with mu held.
func (s *service) function(name string) *function {
	f, isKnown := s.functions[name]
	if !isKnown {
		f = &function{}
		s.functions[name] = f
	}
	return f
}

// isUnanswered reports whether no wake was answered since the oldest one that waits for it began.
func (f *function) isUnanswered() bool { return len(f.wakes) > 0 && !f.answered.After(f.wakes[0]) }

// recordHeld records since when no wake is answered.
func (s *service) recordHeld(ctx context.Context, f *function, name string) {
	f.recording.Lock()
	defer f.recording.Unlock()
	s.mu.Lock()
	isHeld, since := f.isUnanswered(), time.Duration(0)
	if isHeld {
		since = time.Since(f.wakes[0])
	}
	s.mu.Unlock()
	if isHeld {
		s.recordFailed(ctx, name, since, "it has not answered, and what was due when it was woken still is: perhaps "+
			"no pod of it can start")
	}
}

func (s *service) recordFailed(ctx context.Context, name string, since time.Duration, reason string) {
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	note(ctx, name, s.monitors.WakeFailed(ctx, name, since, reason))
}

func (s *service) recordWoken(ctx context.Context, f *function, name string) {
	f.recording.Lock()
	defer f.recording.Unlock()
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	note(ctx, name, s.monitors.Woken(ctx, name))
}

// follow reads what is due at each moment that is planned, until nothing is planned or the process ends.
func (s *service) follow(ctx context.Context) {
	for {
		s.mu.Lock()
		next, until := s.next, s.until
		if next.IsZero() || next.After(until) {
			s.endPlan()
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if !flow.Await(ctx, time.Until(next), s.changed) {
			s.mu.Lock()
			s.endPlan()
			s.mu.Unlock()
			return
		}
		if time.Now().Before(next) {
			continue // the plan has changed
		}
		if err := s.read(ctx, until); err != nil {
			slog.WarnContext(ctx, "what is due could not be read", "error", err, "retry", true)
			s.mu.Lock()
			s.next = time.Now().Add(rereadIn)
			s.mu.Unlock()
		}
	}
}

// endPlan is called with mu held.
func (s *service) endPlan() {
	close(s.planned)
	s.planned = nil
}

// wake wakes a function, with retries within the minute. The next tick does so again while something is due.
func (s *service) wake(ctx context.Context, f *function, w due.Waiting, began time.Time) {
	isFailing := w.IsFailing
	for n := 0; ; n++ {
		posted := time.Now()
		err := s.post(ctx, w.Function)
		if err == nil || errors.Is(err, eventx.ErrNotDone) { // its failure it has logged
			if s.end(f, began, err) || isFailing {
				s.recordWoken(ctx, f, w.Function)
			}
			s.replan(ctx)
			return
		}
		isAbsent := errors.Is(err, eventx.ErrAbsent)
		if isAbsent && w.IsUnregistered { // nothing waits for it
			slog.InfoContext(ctx, "a function is not deployed", "function", w.Function, "error", err)
			s.end(f, began, err)
			return
		}
		isFailing = true
		s.mu.Lock()
		f.woken = time.Now() // the retries are for what became due meanwhile, too
		s.mu.Unlock()
		slog.WarnContext(ctx, "a function could not be woken", "function", w.Function, "error", err)
		s.recordFailed(ctx, w.Function, time.Since(posted), err.Error())
		if isAbsent || n == len(retries) || time.Since(began)+retries[n] > planFor ||
			!flow.Await(ctx, retries[n], nil) {
			s.end(f, began, err)
			return
		}
	}
}

// end ends a wake. wasHeld reports whether it is recorded that the function did not answer.
func (s *service) end(f *function, began time.Time, err error) (wasHeld bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := slices.Index(f.wakes, began); n >= 0 {
		f.wakes = slices.Delete(f.wakes, n, n+1)
	}
	now := time.Now()
	if err != nil {
		f.woken = now // what became due meanwhile it could not do either
	}
	if f.missing++; !errors.Is(err, eventx.ErrAbsent) {
		f.missing = 0
	}
	if err != nil && !errors.Is(err, eventx.ErrNotDone) {
		return false
	}
	wasHeld, f.isHeld, f.answered = f.isHeld, false, now
	return wasHeld
}

func note(ctx context.Context, function string, err error) {
	if err != nil {
		slog.ErrorContext(ctx, "whether a function can be woken is not recorded", "function", function, "error", err)
	}
}
