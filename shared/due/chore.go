package due

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Jobs are the rows of periodic work: one replica at a time does a job, and the clock wakes its function when it is
// due.
type Jobs interface {
	// Register makes jobs of a kind periodic, and no others of that kind: what a setting has switched off has no row. A
	// new job is due now.
	Register(ctx context.Context, kind string, keys []string) error
	// ListDue lists the periodic jobs of a kind that are due and not claimed.
	ListDue(ctx context.Context, kind string) ([]string, error)
	// Claim claims a job, and ClaimDue only one that is due.
	Claim(ctx context.Context, kind, key string, claimFor time.Duration) (domain.Claim, error)
	ClaimDue(ctx context.Context, kind, key string, claimFor time.Duration) (domain.Claim, error)
	// Finish releases a claimed job, which is due again. failure is why it was not done; nil = it was.
	Finish(ctx context.Context, kind, key string, claim domain.Claim, next Next, failure error) error
}

// Next is when a job is due again.
type Next struct {
	In     time.Duration // from now on; 0 = in the next minute
	Second int           // of that minute
	Never  bool          // until there is something to follow again
}

// retryIn is when a job is due again that has failed.
const retryIn = time.Minute

// Chore is work that an event does beside its passes, in one replica at a time: housekeeping, or polling something.
type Chore struct {
	Name  string        // of the job
	Every time.Duration // how often it is done; 0 = by each event, and in each minute
	// Second is when it is due in each minute, if Every is 0. Each function has another one: functions that are woken
	// together would send their requests to OpenStack together.
	Second int
	Limit  time.Duration // bounds one run, and how long a replica that has died delays the next
	// Do does it. An error has it repeated in a minute.
	Do func(ctx context.Context) error
	// More reports whether there is more to do now, after the run of this event; nil = never.
	More func(ctx context.Context) (bool, error)
	// IsIdle reports, after a run, whether there is nothing to follow: then the clock wakes none for it; nil = never.
	IsIdle func(ctx context.Context) (bool, error)

	mu        sync.Mutex
	isRunning bool
}

// Chores are those of a function.
type Chores struct {
	Jobs Jobs
	Kind string // of their jobs
	All  []*Chore

	mu           sync.Mutex
	isRegistered bool
}

// Register writes the rows of the chores. A function calls it when its process starts; each event does so until it has
// succeeded once.
func (c *Chores) Register(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isRegistered {
		return nil
	}
	names := make([]string, len(c.All))
	for n, chore := range c.All {
		names[n] = chore.Name
	}
	err := c.Jobs.Register(ctx, c.Kind, names)
	c.isRegistered = err == nil
	return err
}

// due returns the chores that an event does.
func (c *Chores) due(ctx context.Context) ([]*Chore, error) {
	if c == nil {
		return nil, nil
	}
	if err := c.Register(ctx); err != nil {
		return nil, err
	}
	names, err := c.Jobs.ListDue(ctx, c.Kind)
	if err != nil {
		return nil, err
	}
	var all []*Chore
	for _, chore := range c.All {
		if chore.Every == 0 || slices.Contains(names, chore.Name) {
			all = append(all, chore)
		}
	}
	return all, nil
}

// Run does the chores that are due, one after the other: for a function that has no Runner.
func (c *Chores) Run(ctx context.Context) error {
	all, err := c.due(ctx)
	for _, chore := range all {
		err = errors.Join(err, c.run(ctx, chore))
	}
	return err
}

// start begins a chore beside the passes of an event, unless it is running.
func (c *Chores) start(ctx context.Context, e *event, chore *Chore) {
	chore.mu.Lock()
	defer chore.mu.Unlock()
	if chore.isRunning {
		return
	}
	chore.isRunning = true
	e.all.Go(func() {
		err := c.run(ctx, chore)
		chore.mu.Lock()
		defer chore.mu.Unlock()
		chore.isRunning = false
		e.fail(err)
		e.wake()
	})
}

// areRunning reports whether chores are running, after it has begun those once more that have more to do.
func (c *Chores) areRunning(ctx context.Context, e *event) (areRunning bool, err error) {
	if c == nil {
		return false, nil
	}
	for _, chore := range c.All {
		chore.mu.Lock()
		isRunning := chore.isRunning
		chore.mu.Unlock()
		if !isRunning && chore.More != nil {
			if isRunning, err = chore.More(ctx); err != nil {
				return false, err
			}
			if isRunning {
				c.start(ctx, e, chore)
			}
		}
		areRunning = areRunning || isRunning
	}
	return areRunning, nil
}

// isRunning reports whether a chore is running.
func (c *Chores) isRunning() bool {
	return c != nil && slices.ContainsFunc(c.All, func(chore *Chore) bool {
		chore.mu.Lock()
		defer chore.mu.Unlock()
		return chore.isRunning
	})
}

// run does a chore if no other replica does, or has done since it was due.
func (c *Chores) run(ctx context.Context, chore *Chore) error {
	acquire := c.Jobs.Claim
	if chore.Every > 0 {
		acquire = c.Jobs.ClaimDue
	}
	claim, err := acquire(ctx, c.Kind, chore.Name, chore.Limit)
	if err != nil || !claim.Acquired {
		return chore.wrap(err)
	}
	limited, cancel := context.WithTimeout(ctx, chore.Limit)
	defer cancel()
	err = chore.Do(limited)
	ending, stop := domain.Detached(ctx)
	defer stop()
	next := Next{In: chore.Every, Second: chore.Second}
	switch {
	case err != nil && chore.Every > 0:
		next.In = retryIn
	case err == nil && chore.IsIdle != nil:
		next.Never, err = chore.IsIdle(ending)
	}
	return chore.wrap(errors.Join(err, c.Jobs.Finish(ending, c.Kind, chore.Name, claim, next, err)))
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
