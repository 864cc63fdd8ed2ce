package runleases

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

type service struct {
	db        *postgres.DB
	jobs      postgres.Jobs
	leases    postgres.Leases
	nodes     postgres.Nodes
	isolation postgres.Isolations
	engine    leases.Engine
	account   account // nil = hosts cannot be reserved
	adoption  AdoptConfig
	region    string
	wake      func(functions ...string)

	events  flow.Pair    // those of this process
	retired atomic.Int64 // when this process last deleted old leases, in seconds
}

// account keeps a session of the service account.
type account interface {
	Session(ctx context.Context) (session, error)
	Forget(err error)
}

// session is what this function needs of OpenStack.
type session interface {
	leases.Cloud
	AllServers(ctx context.Context, projectID, marker string) (page []domain.Server, next string, err error)
}

const (
	pause      = time.Second          // between two reads of what is due later
	shortPause = 5 * time.Millisecond // while leases wait for room
	// passTime and the time of an event's waits (flow.FollowFor) are less than EVENT_TIMEOUT.
	passTime = 3 * time.Minute
	atOnce   = 8 // leases

	retireEvery = time.Hour
	// Leases that have ended are shown to their projects for this long.
	retireAfter = 90 * 24 * time.Hour
)

// Run does the work that is due, and waits for what is due soon. In one process one event at a time works, and one
// waits until it has ended; a third returns at once, because the one that waits looks after it.
func (s *service) Run(ctx context.Context) error {
	leave, err := s.events.Enter(ctx)
	if leave == nil {
		return err
	}
	defer leave()
	return s.run(ctx)
}

func (s *service) run(ctx context.Context) error {
	if err := s.retire(ctx); err != nil {
		return err
	}
	var running, beside, pool flow.Tasks
	defer running.Wait()
	defer beside.Wait()
	defer pool.Wait()
	beside.Go(func() { s.adopt(ctx) })
	pool.Go(func() { s.lookAfterPool(ctx, true) })
	return flow.Follow(ctx, pause, func(left time.Duration) (more bool, err error) {
		isSoon, err := s.beginAll(ctx, &running, left)
		if err != nil {
			return false, err
		}
		isMoving, err := s.isPoolMoving(ctx)
		if err == nil && isMoving && pool.Running() == 0 {
			pool.Go(func() { s.lookAfterPool(ctx, false) })
		}
		return isSoon || running.Running() > 0 || pool.Running() > 0, err
	})
}

// beginAll begins work on the leases that are due, now or before the next pause is over. isSoon reports that another
// one is due within left.
func (s *service) beginAll(ctx context.Context, running *flow.Tasks, left time.Duration) (isSoon bool, err error) {
	within, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	for {
		next, err := s.leases.NextDue(ctx, left)
		if err != nil || next == nil || *next >= pause {
			return next != nil, err
		}
		if *next <= 0 {
			err = s.begin(ctx, running)
		}
		if err != nil || !flow.Await(within, max(*next, shortPause), nil) {
			return true, err
		}
	}
}

// begin claims due leases, as many as there is room for, and works on each beside the others.
func (s *service) begin(ctx context.Context, running *flow.Tasks) error {
	room := atOnce - running.Running()
	if room <= 0 {
		return nil
	}
	claimed, claim, err := s.leases.Claim(ctx, s.engine.ClaimFor, room)
	if err != nil || len(claimed) == 0 {
		return err
	}
	now, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	for _, lease := range claimed {
		running.Go(func() { s.work(ctx, claim, lease, now) })
	}
	return nil
}

// work does the steps of one lease. One that cannot be stored stays claimed, and is worked on again when that ends.
func (s *service) work(ctx context.Context, claim domain.Claim, lease domain.Lease, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	err := s.engine.Run(ctx, claim, lease, now)
	switch {
	case err == nil, errors.Is(err, domain.ErrChanged), errors.Is(err, domain.ErrFenced):
	default:
		slog.ErrorContext(ctx, "a lease", "lease_id", lease.ID, "project_id", lease.ProjectID, "status", lease.Status,
			"error", err)
	}
}

// retire deletes old leases, about once an hour. A process requests the claim that often, too, so that a tick with
// nothing to do is one statement.
func (s *service) retire(ctx context.Context) error {
	if last := s.retired.Swap(time.Now().Unix()); time.Since(time.Unix(last, 0)) < retireEvery {
		s.retired.Store(last)
		return nil
	}
	// never released: it is due again when the claim ends
	claim, err := s.jobs.Claim(ctx, jobKind, "retire", retireEvery)
	if err != nil || !claim.Acquired {
		return err
	}
	return s.leases.Retire(ctx, retireAfter)
}
