package leases

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Cloud is the part of OpenStack that leases need, with the service account.
type Cloud interface {
	actions.Cloud
	HostCloud
}

// Store stores leases. What it writes is fenced by a claim.
type Store interface {
	SaveStep(ctx context.Context, claim domain.Claim, lease *domain.Lease, claimFor time.Duration) error
	Save(ctx context.Context, claim domain.Claim, lease *domain.Lease) error
	Finish(ctx context.Context, claim domain.Claim, lease *domain.Lease) error
	Prepared(ctx context.Context, claim domain.Claim, r domain.Reservation, nodes ...string) error
	Released(ctx context.Context, claim domain.Claim, r domain.Reservation, nodes ...string) error
	Reallocate(ctx context.Context, claim domain.Claim, lease domain.Lease, r domain.Reservation, from string) (
		to string, ok bool, err error)
	HeldByOthers(ctx context.Context, r domain.Reservation, nodes ...string) ([]string, error)
}

// Actions stores what run-connections does with what was delegated to a lease.
type Actions interface {
	Create(ctx context.Context, action domain.DelegatedAction) (domain.DelegatedAction, error)
	Get(ctx context.Context, filter domain.Filter, id uuid.UUID) (domain.DelegatedAction, error)
	Abandon(ctx context.Context, action domain.DelegatedAction, problem *domain.Problem) error
}

// Instances reads instances, and stores what the service account does to them.
type Instances interface {
	actions.Instances
	Find(ctx context.Context, filter domain.Filter, ids []string) ([]domain.Instance, error)
}

// Connections reports whether what was delegated to a lease is still valid.
type Connections interface {
	Status(ctx context.Context, projectID string, id uuid.UUID) (status domain.ConnectionStatus, reason string,
		err error)
}

// Nodes stores the hosts that are or become reservable.
type Nodes interface {
	Pool(ctx context.Context) ([]domain.Node, error)
	PoolTrait(ctx context.Context) (string, error)
	SetPool(ctx context.Context, name string, from, to domain.PoolState, reason string) (ok bool, err error)
}
