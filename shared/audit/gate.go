package audit

import (
	"context"
	"sync"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// gate shares one check among all who wait for it. Whoever comes while a check runs waits for the next: the
// one that runs may have seen the world before they came.
type gate struct {
	check func(context.Context) error

	mu      sync.Mutex
	next    *verdict
	running bool
}

type verdict struct {
	done chan struct{}
	err  error
}

func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	if g.next == nil {
		g.next = &verdict{done: make(chan struct{})}
	}
	mine := g.next
	if !g.running {
		g.running = true
		go g.run() //nolint:gosec // no one waiter's context may end the check of all
	}
	g.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return apperr.Wrap(apperr.Timeout, ctx.Err(), "the database did not answer in time")
	}
}

func (g *gate) run() {
	for {
		g.mu.Lock()
		current := g.next
		g.next = nil
		if current == nil {
			g.running = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		current.err = g.check(ctx)
		cancel()
		close(current.done)
	}
}
