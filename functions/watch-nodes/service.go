package watchnodes

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/obs"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

type service struct {
	db      *postgres.DB
	jobs    postgres.Jobs
	nodes   postgres.Nodes
	drains  postgres.Drains
	watcher nodes.Watcher
	engine  nodes.Engine
	account account // nil = nothing is watched
	wake    func(functions ...string)

	againAfter time.Duration // after it hosts that have just become suspect are polled once more
	metrics    *obs.Snapshot
	events     flow.Pair // those of this process
}

// account keeps a session of the service account.
type account interface {
	Session(ctx context.Context) (session, error)
	Forget(err error)
}

// session is what this function needs of OpenStack.
type session interface {
	nodes.WatchCloud
	nodes.DrainCloud
}

func newService(d run.Deps) *service {
	return &service{
		db: d.DB, jobs: postgres.Jobs{DB: d.DB}, wake: d.Wake,
		againAfter: 10 * time.Second, metrics: obs.NewSnapshot(gauges), events: flow.NewPair(),
	}
}

const (
	pause = time.Second // between two checks of what is due
	// claimFor is how long a replica that has died keeps its drains. A pass is shorter.
	claimFor = nodes.PassTime + 5*time.Second
	atOnce   = 4 // drains
)

// Run watches, does the drains that are due, and waits for those that are due soon. In one process one event at a time
// works, and one waits until it has ended; a third returns at once, because the one that waits looks after it.
func (s *service) Run(ctx context.Context) error {
	leave, err := s.events.Enter(ctx)
	if leave == nil {
		return err
	}
	defer leave()
	var drains, watch flow.Tasks
	defer drains.Wait()
	defer watch.Wait()
	watch.Go(func() { s.watch(ctx) })
	return flow.Follow(ctx, pause, func(left time.Duration) (more bool, err error) {
		begun, err := s.begin(ctx, &drains)
		if err != nil {
			return false, err
		}
		isSoon, err := s.drains.IsDue(ctx, left)
		return begun > 0 || isSoon || drains.Running() > 0 || watch.Running() > 0, err
	})
}

// begin claims due drains, as many as there is room for, and works on each beside the others.
func (s *service) begin(ctx context.Context, running *flow.Tasks) (begun int, err error) {
	room := atOnce - running.Running()
	if room <= 0 {
		return 0, nil
	}
	claimed, claim, err := s.drains.Claim(ctx, claimFor, room)
	if err != nil || len(claimed) == 0 {
		return 0, err
	}
	now, err := s.db.Now(ctx)
	if err != nil {
		return 0, err
	}
	for _, drain := range claimed {
		running.Go(func() { s.work(ctx, claim, drain, now) })
	}
	return len(claimed), nil
}

// work does one pass of a drain. One that cannot be stored stays claimed, and goes on when that ends.
func (s *service) work(ctx context.Context, claim domain.Claim, drain domain.Drain, now time.Time) {
	if err := s.engine.Run(ctx, claim, drain, now); err != nil && !errors.Is(err, domain.ErrFenced) {
		slog.ErrorContext(ctx, "a drain", "node", drain.Node, "drain_id", drain.ID, "error", err)
	}
}
