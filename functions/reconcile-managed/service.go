package reconcilemanaged

import (
	"context"
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
