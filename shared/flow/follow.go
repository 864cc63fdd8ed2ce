package flow

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// FollowFor is for how long an event waits for what is due later: until the next tick, which waits for the rest.
const FollowFor = time.Minute

// Follow calls step at once and after each pause, while step reports more, FollowFor has not passed and the process is
// not ending. left is what is left of FollowFor. The error is that of step.
func Follow(ctx context.Context, pause time.Duration, step func(left time.Duration) (more bool, err error)) error {
	for end := time.Now().Add(FollowFor); ; {
		more, err := step(time.Until(end))
		if err != nil || !more || time.Now().Add(pause).After(end) || !Await(ctx, pause, nil) {
			return err
		}
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

// Tasks run beside each other. The zero value has none.
type Tasks struct {
	all     sync.WaitGroup
	running atomic.Int32
}

// Go starts a task.
func (t *Tasks) Go(task func()) {
	t.running.Add(1)
	t.all.Go(func() {
		defer t.running.Add(-1)
		task()
	})
}

// Running is the number of tasks that have not ended.
func (t *Tasks) Running() int { return int(t.running.Load()) }

// Wait waits until all tasks have ended.
func (t *Tasks) Wait() { t.all.Wait() }
