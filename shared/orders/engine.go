// Package orders brings orders to what they ask for: it asks Nova for their servers so that none is lost or made twice,
// observes them, and stops, starts or deletes them. It works with any session: the caller's own, a connection's, or the
// service account's.
package orders

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Cloud is the part of OpenStack that orders need.
type Cloud interface {
	Quota(context.Context) (domain.Quota, error)
	CreateServer(ctx context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string) (string, error)
	StartServer(ctx context.Context, id string) error
	StopServer(ctx context.Context, id string) error
	DeleteServer(ctx context.Context, id string) error
	Server(ctx context.Context, id string) (domain.Server, error)
	Servers(context.Context, domain.ServerQuery) (page []domain.Server, more bool, err error)
}

// KeyPairs is where the key pair of an order is deleted, which only its owner can do.
type KeyPairs interface {
	DeleteKeyPair(ctx context.Context, name string) error
}

// Store is the part of the database that orders need.
type Store interface {
	Place(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Renew(ctx context.Context, order domain.Order, claim domain.Claim, claimFor time.Duration) error
	Release(ctx context.Context, order domain.Order, claim domain.Claim) error
	BeginCall(ctx context.Context, order domain.Order, claim domain.Claim, call domain.CreateCall, claimFor, fence time.Duration) error
	EndCall(ctx context.Context, order domain.Order, call domain.CreateCall) error
	Decide(ctx context.Context, claim domain.Claim, i domain.Instance) error
	MarkDuplicate(ctx context.Context, order domain.Order, call domain.CreateCall, serverID string) (bool, error)
	PublishUnexpected(ctx context.Context, i domain.Instance, s domain.Server) (published bool, err error)
	Finalize(ctx context.Context, order domain.Order) error
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error)
	Now(context.Context) (time.Time, error)
}

// Instances is where it is written what is seen of instances.
type Instances interface {
	Change(ctx context.Context, known []domain.Instance) (published int, err error)
	domain.DeleteCounter
}

// Engine works on orders.
type Engine struct {
	Orders    Store
	Instances Instances
	Wake      func()        // wakes the functions that have work after a change
	Fence     time.Duration // for how long an unanswered create call keeps the next one back; two thirds may go to the call
}

// Session is what one run works with.
type Session struct {
	Cloud    Cloud           // nil when only run-connections can decrypt the delegation
	Keys     KeyPairs        // nil leaves the order's key pair to its owner
	UserID   string          // who makes the create calls; "" = not known
	UserData []domain.Secret // of each instance, in their order; nil: the run asks for no servers
	// Prepare is called before servers are asked for, and gives the order as it is to be asked for; nil changes
	// nothing.
	Prepare func(context.Context, domain.Order, domain.Claim) (domain.Order, error)
	// IsFatal reports the errors that end the run at once, because the session may be at fault; nil = none does.
	IsFatal func(error) bool
	Follows bool // the run goes on until the order is settled, whatever it asks for: nobody else observes it
}

// claimFor is for how long a claim holds without being renewed: the order of a replica that died is free again after
// that.
func (e Engine) claimFor() time.Duration { return min(e.Fence, longestClaim) }

// Claim claims a stored order, if there is work left that nobody does.
func (e Engine) Claim(ctx context.Context, order domain.Order) (domain.Claim, error) {
	return e.Orders.Claim(ctx, order, e.claimFor())
}

// Submitted is what became of an order that was submitted.
type Submitted struct {
	Order      domain.Order // as it is stored
	IsFresh    bool         // it was not there before
	WasWorked  bool         // this call has worked on it
	Unfinished error        // why that work has stopped before its end
}

// Submit stores a new order and works on it. One that is stored already is resumed: what a replica that died has left
// of it is finished. Without a cloud the order is left to run-connections.
func (e Engine) Submit(ctx context.Context, s Session, order domain.Order) (out Submitted, err error) {
	claimFor := e.claimFor()
	if s.Cloud == nil {
		claimFor = 0
	}
	claim, err := e.Orders.Place(ctx, order, claimFor)
	if err != nil {
		return out, err
	}
	out.IsFresh, out.WasWorked = claim.Fresh, claim.Held
	switch {
	case claim.Held:
		e.Wake()
		if claim.Fresh {
			order = placed(order, claim.At)
		}
		out.Order, out.Unfinished, err = e.Run(ctx, s, order, claim)
	case s.Cloud == nil:
		if out.Order, err = e.Orders.Get(ctx, order.ProjectID, order.ID); err == nil && out.Order.Status == domain.OrderRunning {
			e.Wake()
		}
	default:
		out.Order, err = e.settle(ctx, s.Keys, order)
	}
	return out, err
}

// placed is a fresh order as the database has it, at the moment at which it was stored.
func placed(order domain.Order, at time.Time) domain.Order {
	order.Status, order.CreatedAt, order.ReadAt, order.CallsRecorded = domain.OrderRunning, at, at, true
	return order
}

// Run works on the order under a claim until ctx's deadline, which it must have, and finalizes it. It gives the order
// as it is stored then. unfinished is why the work has stopped before its end: what it could not decide is left to
// whoever comes next.
func (e Engine) Run(ctx context.Context, s Session, order domain.Order, claim domain.Claim) (stored domain.Order, unfinished, err error) {
	unfinished = e.work(ctx, s, order, claim)
	end, cancel := domain.Detached(ctx)
	defer cancel()
	stored, err = e.settle(end, s.Keys, order)
	return stored, unfinished, err
}

// Refresh observes the order's servers, and does what the order asks for besides them if nobody does. The session may
// only be good for reading.
func (e Engine) Refresh(ctx context.Context, s Session, order domain.Order) (domain.Order, error) {
	if order.Spec.Attended() && order.Status == domain.OrderRunning {
		claim, err := e.Claim(ctx, order)
		if err != nil {
			return order, err
		}
		if claim.Held {
			stored, unfinished, err := e.Run(ctx, s, order, claim)
			if err = errors.Join(unfinished, err); apperr.CodeOf(err) != apperr.Forbidden {
				return stored, err
			}
			slog.WarnContext(ctx, "order not resumed", "order_id", order.ID, "error", err)
		}
	}
	order, err := e.Observe(ctx, s.Cloud, order)
	if err != nil {
		return order, err
	}
	return e.Finalize(ctx, s.Keys, order)
}

// Advance takes the order's steps once, unless another replica works on it. It asks for no servers.
func (e Engine) Advance(ctx context.Context, order domain.Order, use func(do func(Session) error) error) error {
	claim, err := e.Claim(ctx, order)
	if err != nil || !claim.Held {
		return err
	}
	held, stop := e.hold(ctx, order, claim)
	defer stop()
	order, err = e.Orders.Get(held, order.ProjectID, order.ID) // under the claim, so that all create calls are known
	if err == nil {
		err = use(func(s Session) error {
			_, err := e.step(held, s, order, claim)
			return err
		})
	}
	stop()
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return errors.Join(err, e.Orders.Release(end, order, claim))
}
