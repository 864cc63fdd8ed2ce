// Package orders makes Nova's servers what orders request: it requests them so that none is lost or made twice,
// observes them, and stops, starts or deletes them. It works with any session: the caller's own, a connection's, or the
// service account's.
package orders

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// Cloud is the part of OpenStack that orders need.
type Cloud interface {
	lookup.Lister
	lookup.ServerReader
	Quota(context.Context) (domain.Quota, error)
	CreateServer(
		ctx context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string,
	) (string, error)
	StartServer(ctx context.Context, id string) error
	StopServer(ctx context.Context, id string) error
	DeleteServer(ctx context.Context, id string) error
}

// KeyPairs deletes the key pair of an order, which only its owner can do.
type KeyPairs interface {
	DeleteKeyPair(ctx context.Context, name string) error
}

// Store is the part of the database that orders need.
type Store interface {
	Place(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Renew(ctx context.Context, order domain.Order, claim domain.Claim, claimFor time.Duration) error
	Release(ctx context.Context, order domain.Order, claim domain.Claim) error
	BeginCall(
		ctx context.Context, order domain.Order, claim domain.Claim, call domain.CreateCall,
		claimFor, fence time.Duration,
	) error
	EndCall(ctx context.Context, order domain.Order, call domain.CreateCall) error
	Decide(ctx context.Context, claim domain.Claim, i domain.Instance) error
	MarkDuplicate(ctx context.Context, order domain.Order, call domain.CreateCall, serverID string) (bool, error)
	PublishUnexpected(ctx context.Context, i domain.Instance, s domain.Server) (published bool, err error)
	Finalize(ctx context.Context, order domain.Order) error
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error)
	Now(context.Context) (time.Time, error)
}

// Instances stores the states of instances.
type Instances interface {
	Change(ctx context.Context, known []domain.Instance) (published int, err error)
	domain.DeleteCounter
}

// Engine works on orders.
type Engine struct {
	Orders    Store
	Instances Instances
	Wake      func() // wakes the functions that have work after a change
	// Fence is how long an unanswered create call delays the next one; the call may take two thirds of it.
	Fence time.Duration
}

// Session is what one run works with.
type Session struct {
	Cloud    Cloud           // nil when only run-connections can decrypt the delegation
	Keys     KeyPairs        // nil leaves the order's key pair to its owner
	UserID   string          // whose Cloud and Keys are; "" = whoever the order is for
	UserData []domain.Secret // of each instance, in their order; nil: the run requests no servers
	// Prepare is called before servers are requested, and returns the order to request; nil changes nothing.
	Prepare func(context.Context, domain.Order, domain.Claim) (domain.Order, error)
	// IsFatal reports the errors that end the run at once, because the session may be at fault; nil = none.
	IsFatal func(error) bool
	Follows bool // the run continues until the order is settled, whatever it requests: nobody else observes it
}

// keysOf returns what deletes the order's key pair. A pair is a user's, so one of its name that another user has is not
// the order's.
func (s Session) keysOf(order domain.Order) KeyPairs {
	if s.UserID != "" && s.UserID != order.UserID {
		return nil
	}
	return s.Keys
}

// claimFor is how long a claim lasts without being renewed. After that another replica may work on the order.
func (e Engine) claimFor() time.Duration { return min(e.Fence, longestClaim) }

// Claim claims a stored order, if it has work left that no replica does.
func (e Engine) Claim(ctx context.Context, order domain.Order) (domain.Claim, error) {
	return e.Orders.Claim(ctx, order, e.claimFor())
}
