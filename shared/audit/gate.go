package audit

import (
	"context"
	"sync"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// gate shares one check among all who wait for it. A check that is under way counts only for those who came before it
// began.
type gate struct {
	check func(context.Context) error
	runs  flow.Coalescer

	mu   sync.Mutex
	next *verdict
}

type verdict struct {
	done chan struct{}
	err  error
}

func (g *gate) wait(ctx context.Context) error {
	mine := g.join()
	if run := g.runs.Begin(); run != nil {
		go g.run(run) //nolint:gosec // no one waiter's context may end the check of all
	}
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return apperr.Wrap(apperr.Timeout, ctx.Err(), "the database did not answer in time")
	}
}

// join is the verdict of the next check.
func (g *gate) join() *verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		g.next = &verdict{done: make(chan struct{})}
	}
	return g.next
}

func (g *gate) run(run *flow.Run) {
	for ended := false; !ended; ended = run.Done() {
		g.mu.Lock()
		current := g.next
		g.next = nil
		g.mu.Unlock()
		if current == nil { // the last check has served whoever requested this one
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		current.err = g.check(ctx)
		cancel()
		close(current.done)
	}
}
