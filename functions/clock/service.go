package clock

import (
	"context"
	"errors"
	"log/slog"
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

	reading sync.Mutex // one reads and sets the next moment at a time: what was read last counts

	mu      sync.Mutex
	woken   map[string]time.Time // when each function was woken last
	next    time.Time            // when something is due; zero = nothing is planned
	until   time.Time            // when the plan ends: the next tick makes another one
	changed chan struct{}        // receives when next has changed
	planned chan struct{}        // closed when nothing is planned any more; nil = nothing is
}

func newService(s store, m monitors, post func(ctx context.Context, function string) error) *service {
	return &service{store: s, monitors: m, post: post, woken: map[string]time.Time{}, changed: make(chan struct{}, 1)}
}

const (
	// planFor is the time between two ticks.
	planFor = time.Minute
	// wakeAgain is when a function is woken again for what was due already when it was woken the last time: a tick may
	// be doubled, and a function may not be able to do something.
	wakeAgain = 30 * time.Second
	// rereadIn is when the clock reads again that could not read what it has planned.
	rereadIn = 5 * time.Second
	readTime = 20 * time.Second
)

// retries are the pauses after wakes that failed, all within a minute.
var retries = []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, 20 * time.Second}

// plan wakes what is due now, and has what is due later, until the next tick, woken then. planned is closed when
// nothing is planned any more.
func (s *service) plan(ctx context.Context) (planned <-chan struct{}, err error) {
	return s.planUntil(ctx, time.Now().Add(planFor))
}

// replan plans what a function has left that has ended its work.
func (s *service) replan(ctx context.Context) {
	reading, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if _, err := s.planUntil(reading, time.Time{}); err != nil {
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
	asked := time.Now() // not later: what was due at the last wake must not look new
	waiting, err := s.store.NextDue(ctx, planFor)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.next = time.Time{}
	if until.After(s.until) {
		s.until = until
	}
	for _, w := range waiting {
		at, last := asked.Add(w.In), s.woken[w.Function]
		switch isNew := at.After(last); {
		case at.After(now):
			if s.next.IsZero() || at.Before(s.next) {
				s.next = at
			}
		case isNew || now.Sub(last) >= wakeAgain:
			s.woken[w.Function] = now
			go s.wake(context.WithoutCancel(ctx), w.Function, w.IsFailing)
		}
	}
	return nil
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
		reading, cancel := context.WithTimeout(ctx, readTime)
		err := s.read(reading, until)
		cancel()
		if err != nil {
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

// wake wakes a function, with retries within the minute. The next tick does so anew while something is due.
func (s *service) wake(ctx context.Context, function string, isFailing bool) {
	end := time.Now().Add(planFor)
	for n := 0; ; n++ {
		began := time.Now()
		err := s.post(ctx, function)
		if err == nil || errors.Is(err, eventx.ErrNotDone) { // its failure it has logged
			if isFailing {
				note(ctx, function, s.monitors.Woken(ctx, function))
			}
			s.replan(ctx)
			return
		}
		isFailing = true
		slog.WarnContext(ctx, "a function could not be woken", "function", function, "error", err)
		note(ctx, function, s.monitors.WakeFailed(ctx, function, time.Since(began), err.Error()))
		if n == len(retries) || time.Now().Add(retries[n]).After(end) || !flow.Await(ctx, retries[n], nil) {
			return
		}
	}
}

func note(ctx context.Context, function string, err error) {
	if err != nil {
		slog.ErrorContext(ctx, "whether a function can be woken is not recorded", "function", function, "error", err)
	}
}
