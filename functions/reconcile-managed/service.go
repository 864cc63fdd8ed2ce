package reconcilemanaged

import (
	"context"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/managed"
)

const (
	slots = 32 // projects at a time
	// createFence is how long a create call without an answer delays the next one for its server.
	createFence = 45 * time.Second
)

// newRunner works on due projects.
func newRunner(engine managed.Engine, store due.Store[domain.ManagedProject]) *due.Runner[domain.ManagedProject] {
	return &due.Runner[domain.ManagedProject]{
		Store: store, ClaimFor: claimFor, Slots: slots,
		Work: func(ctx context.Context, claim domain.Claim, p domain.ManagedProject, _ time.Time) error {
			return engine.Run(ctx, claim, p)
		},
		Describe: func(p domain.ManagedProject) (noun string, attrs []any) {
			return "managed project", []any{"project_id", p.ProjectID}
		},
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
