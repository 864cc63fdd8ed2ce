package reconcilemanaged

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/managed"
)

// store is the part of the database that finds the projects that are due.
type store interface {
	ClaimProjects(
		ctx context.Context, claimFor time.Duration, limit int,
	) ([]domain.ManagedProject, domain.Claim, error)
	IsDue(ctx context.Context, soon time.Duration) (bool, error)
}

type service struct {
	store  store
	engine managed.Engine
	pair   flow.Pair
	claim  time.Duration // how long a replica that has died keeps its projects
}

func newService(s store, claim time.Duration) *service {
	return &service{store: s, pair: flow.NewPair(), claim: claim}
}

const (
	pause = 500 * time.Millisecond // between two looks at what is due
	// passTime bounds one round of a project.
	passTime = 4 * time.Minute
	atOnce   = 8 // projects
	// createFence is how long a create call without an answer delays the next one for its server.
	createFence = 45 * time.Second
)

// Run does the work that is due, and waits for what is due soon. In one process one event at a time works, and one
// waits until it has ended; a third returns at once, because the one that waits looks after it.
func (s *service) Run(ctx context.Context) error {
	leave, err := s.pair.Enter(ctx)
	if leave == nil || err != nil {
		return err
	}
	defer leave()
	var running flow.Tasks
	defer running.Wait()
	return flow.Follow(ctx, pause, func(left time.Duration) (more bool, err error) {
		isSoon, err := s.store.IsDue(ctx, left)
		if err != nil || !isSoon {
			return running.Running() > 0, err // of a tick that finds nothing due, that is all
		}
		return true, s.begin(ctx, &running)
	})
}

// begin claims due projects, as many as there is room for, and works on each beside the others.
func (s *service) begin(ctx context.Context, running *flow.Tasks) error {
	room := atOnce - running.Running()
	if room <= 0 {
		return nil
	}
	claimed, claim, err := s.store.ClaimProjects(ctx, s.claim, room)
	for _, project := range claimed {
		running.Go(func() { s.work(ctx, claim, project) })
	}
	return err
}

// work does one round of a project. One that cannot be stored stays claimed, and is worked on again when that ends.
func (s *service) work(ctx context.Context, claim domain.Claim, project domain.ManagedProject) {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	err := s.engine.Run(ctx, claim, project)
	if err != nil && !errors.Is(err, domain.ErrFenced) && !errors.Is(err, domain.ErrChanged) {
		slog.ErrorContext(ctx, "a project of managed resources", "project_id", project.ProjectID, "error", err)
	}
}

// connections end what was delegated.
type connections interface {
	Lose(ctx context.Context, lost domain.Connection, reason string, revoked bool) (ended bool, err error)
}

// connectionLost returns what records that Keystone does not accept a trust any more, so that the next declaration
// makes another one. A connection that has got another trust since stays.
func connectionLost(
	all connections, wake func(functions ...string),
) func(context.Context, domain.Connection) {
	return func(ctx context.Context, c domain.Connection) {
		ending, cancel := domain.Detached(ctx)
		defer cancel()
		if _, err := all.Lose(ending, c, domain.LostReason(c.Kind), false); err != nil {
			slog.WarnContext(ctx, "a connection is not recorded as lost", "connection_id", c.ID, "error", err)
		}
		wake("run-connections")
	}
}
