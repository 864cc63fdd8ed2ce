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
