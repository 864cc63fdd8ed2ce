// Package flow holds the primitives of concurrency that several packages share.
package flow

import (
	"context"
	"sync"
	"time"
)

// Sleep waits for d. It is false when ctx has ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

type endingKey struct{}

// WithEnding returns a context whose waits for later work end when ending is closed. The work itself continues.
func WithEnding(ctx context.Context, ending <-chan struct{}) context.Context {
	return context.WithValue(ctx, endingKey{}, ending)
}

// Await waits for d, or until wake receives. It is false when ctx has ended first, or the process is ending.
func Await(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	ending, _ := ctx.Value(endingKey{}).(<-chan struct{})
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-wake:
		return true
	case <-ending:
		return false
	case <-ctx.Done():
		return false
	}
}

// Backoff is the pause after so many attempts, 1 or more: it doubles from shortest to longest.
func Backoff(shortest, longest time.Duration, attempts int) time.Duration {
	pause := shortest
	for range attempts - 1 {
		if pause *= 2; pause >= longest {
			return longest
		}
	}
	return pause
}

// Coalescer lets one run of some work be under way at a time. Requests that come during a run make one more run after
// it together: that run begins after the last of them. The zero value is ready for use.
type Coalescer struct {
	mu             sync.Mutex
	running, again bool
}

// Run is the run that is under way.
type Run struct {
	of    *Coalescer
	ended bool
}

// Begin requests a run. It gives the run that the caller has to do, or nil when the run that is under way will be
// repeated.
func (c *Coalescer) Begin() *Run {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		c.again = true
		return nil
	}
	c.running = true
	return &Run{of: c}
}

// Done ends the run. It is false when a run was requested since it began: then the caller has to repeat it.
func (r *Run) Done() bool {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.of.again {
		r.of.again = false
		return false
	}
	r.of.running, r.ended = false, true
	return true
}

// Stop ends the run in any case, unless it has ended already.
func (r *Run) Stop() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if !r.ended {
		r.of.running, r.of.again, r.ended = false, false, true
	}
}

// Gate lets one caller work and one more wait until it may. Further callers need not work: the one that waits begins
// after they came. Other than with a Coalescer a caller that waits is answered only when its own work has ended, so
// that an event whose process dies is sent again.
type Gate struct {
	work, next chan struct{} // hold one while a caller works, and while one waits
}

// NewGate returns a Gate that no caller works in.
func NewGate() Gate { return Gate{work: make(chan struct{}, 1), next: make(chan struct{}, 1)} }

// Enter waits until the caller may work; then the caller has to call leave. It is nil when another one waits already.
// err is that of ctx when it has ended first.
func (p Gate) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case p.next <- struct{}{}:
	default:
		return nil, nil //nolint:nilnil // the caller has nothing to do
	}
	defer func() { <-p.next }()
	select {
	case p.work <- struct{}{}:
		return func() { <-p.work }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Shared is a value that is opened once for all callers, such as a session. The zero value of T means none.
type Shared[T comparable] struct {
	mu      sync.Mutex // never held while open runs
	current T
	opening chan struct{} // closed when the caller that opens is done; nil when none does
}

// Get returns the current value, unless that is stale, or opens another one. One caller opens at a time. The others
// wait for its value until their own contexts end; if it fails, the next one tries.
func (s *Shared[T]) Get(ctx context.Context, stale T, open func(context.Context) (T, error)) (T, error) {
	var none T
	for {
		s.mu.Lock()
		if s.current != none && s.current != stale {
			defer s.mu.Unlock()
			return s.current, nil
		}
		opening := s.opening
		if opening == nil {
			s.opening = make(chan struct{})
			s.mu.Unlock()
			return s.open(ctx, open)
		}
		s.mu.Unlock()
		select {
		case <-opening:
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
}

func (s *Shared[T]) open(ctx context.Context, open func(context.Context) (T, error)) (opened T, err error) {
	var none T
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil && opened != none {
			s.current = opened
		}
		close(s.opening)
		s.opening = nil
	}()
	return open(ctx)
}

// Current returns the value that is open, or none.
func (s *Shared[T]) Current() T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Forget drops the value if it is still the stale one.
func (s *Shared[T]) Forget(stale T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == stale {
		var none T
		s.current = none
	}
}
