package due

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Jobs let one replica at a time do a chore.
type Jobs interface {
	Claim(ctx context.Context, kind, key string, claimFor time.Duration) (domain.Claim, error)
	Release(ctx context.Context, kind, key string, claim domain.Claim) error
	Fail(ctx context.Context, kind, key string, claim domain.Claim, reason error) error
}

// Chore is work that an event does beside its passes, in one replica at a time: housekeeping, or polling something.
type Chore struct {
	Jobs       Jobs
	Kind, Name string        // of the job
	Every      time.Duration // how often it is done; 0 = by each event
	Limit      time.Duration // bounds one run, and how long a replica that has died delays the next, if Every is 0
	// Do does it. An error has it repeated by the next event.
	Do func(ctx context.Context) error
	// More reports whether there is more to do now, after the run of this event; nil = never.
	More func(ctx context.Context) (bool, error)

	mu        sync.Mutex
	isRunning bool
	tried     time.Time // when this process has claimed it last, or has found it claimed
}

// start begins the chore beside the passes of an event, unless it is running, or was done less than Every ago. With
// nothing to do it costs no statement.
func (c *Chore) start(ctx context.Context, e *event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isRunning || c.Every > 0 && !c.tried.IsZero() && time.Since(c.tried) < c.Every {
		return
	}
	c.isRunning, c.tried = true, time.Now()
	e.all.Go(func() {
		err := c.Run(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.isRunning = false; err != nil {
			c.tried = time.Time{}
		}
		e.fail(err)
		e.wake()
	})
}

// again reports whether the chore is running, after it has begun it once more if there is more to do.
func (c *Chore) again(ctx context.Context, e *event) (isRunning bool, err error) {
	c.mu.Lock()
	isRunning = c.isRunning
	c.mu.Unlock()
	if isRunning || c.More == nil {
		return isRunning, nil
	}
	isMore, err := c.More(ctx)
	if err != nil || !isMore {
		return false, err
	}
	c.start(ctx, e)
	return true, nil
}

// Run does the chore if no other replica does. One that is done every so often keeps its claim: that spaces the runs of
// all replicas.
func (c *Chore) Run(ctx context.Context) error {
	claimFor := c.Every
	if claimFor == 0 {
		claimFor = c.Limit
	}
	claim, err := c.Jobs.Claim(ctx, c.Kind, c.Name, claimFor)
	if err != nil || !claim.Acquired {
		return c.wrap(err)
	}
	limited, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	err = c.Do(limited)
	ending, stop := domain.Detached(ctx)
	defer stop()
	switch {
	case err != nil:
		_ = c.Jobs.Fail(ending, c.Kind, c.Name, claim, err) // the claim ends without it, too
	case c.Every == 0:
		err = c.Jobs.Release(ending, c.Kind, c.Name, claim)
	}
	return c.wrap(err)
}

func (c *Chore) wrap(err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return nil
}

// fail adds the error of a chore.
func (e *event) fail(err error) {
	if err == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.errs = append(e.errs, err)
}
