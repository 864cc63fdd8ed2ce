package flow

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Follow calls step at once and after each pause, while step reports more and d has not passed. left is what is left of
// d. The error is that of step.
func Follow(
	ctx context.Context, d, pause time.Duration, step func(left time.Duration) (more bool, err error),
) error {
	for end := time.Now().Add(d); ; {
		more, err := step(time.Until(end))
		if err != nil || !more || time.Now().Add(pause).After(end) || !Sleep(ctx, pause) {
			return err
		}
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
