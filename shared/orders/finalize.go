package orders

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// ErrKeyLeft says that an order cannot be finalized yet, because its key pair could not be deleted.
var ErrKeyLeft = errors.New("the key pair of an order that leaves no servers could not be deleted")

// settle reads the order and finalizes it.
func (e Engine) settle(ctx context.Context, s Session, order domain.Order) (domain.Order, error) {
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID)
	if err != nil {
		return order, err
	}
	return e.Finalize(ctx, s.keysOf(order), order)
}

// Finalize stores the status that follows from the order's instances, if it is final. The key pair of an order that
// leaves no servers is deleted first, also when a replica without the owner's session has finalized the order.
func (e Engine) Finalize(ctx context.Context, keys KeyPairs, order domain.Order) (domain.Order, error) {
	status := order.Evaluate()
	if keys != nil && leavesKey(order, status) {
		if err := keys.DeleteKeyPair(ctx, order.Spec.GeneratedKey); err != nil {
			return order, fmt.Errorf("%w: %w", ErrKeyLeft, err)
		}
	}
	if status == order.Status {
		return order, nil
	}
	return e.end(ctx, order, status, order.LeftProblem())
}

// leavesKey reports whether the order ends without servers but with a key pair that it made. One of that name that
// existed before is the owner's, and its fingerprint was never recorded.
func leavesKey(order domain.Order, status domain.OrderStatus) bool {
	key := order.Spec.GeneratedKey
	hasKey := func(i domain.Instance) bool { return i.KeyName == key && i.KeyFingerprint != "" }
	hasServers := status == domain.OrderFailed && order.HasServers()
	return key != "" && slices.ContainsFunc(order.Instances, hasKey) &&
		!hasServers && (status == domain.OrderFailed || status == domain.OrderRolledBack)
}

func (e Engine) end(
	ctx context.Context, order domain.Order, status domain.OrderStatus, why *domain.Problem,
) (domain.Order, error) {
	order.Status, order.Problem = status, why
	err := e.Orders.Finalize(ctx, order)
	e.Wake()
	return order, err
}

// Abandon ends an order on which no replica can work any more, unless one still does: its undecided instances fail for
// the given reason, and the others keep their states. While Nova may still be making a server of it, the order is
// unchanged.
func (e Engine) Abandon(ctx context.Context, projectID string, id uuid.UUID, why *domain.Problem) error {
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	order := domain.Order{ID: id, ProjectID: projectID}
	claim, err := e.Claim(ctx, order)
	if err != nil || !claim.Acquired {
		return err
	}
	return errors.Join(e.abandonClaimed(ctx, order, claim, why), e.Orders.Release(ctx, order, claim))
}

func (e Engine) abandonClaimed(ctx context.Context, order domain.Order, claim domain.Claim, why *domain.Problem) error {
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID) // under the claim, so that all create calls are known
	if err != nil || order.HasOpenCall() {
		return err
	}
	if order, err = e.FailUndecided(ctx, order, claim, why); err != nil {
		return err
	}
	_, err = e.end(ctx, order, order.Abandoned(), why)
	return err
}

// FailUndecided stores that the order's undecided instances have failed, and returns the stored order.
func (e Engine) FailUndecided(
	ctx context.Context, order domain.Order, claim domain.Claim, why *domain.Problem,
) (domain.Order, error) {
	for _, i := range order.Instances {
		if i.Decided() {
			continue
		}
		i.State, i.Problem, i.SeenAt = domain.InstanceError, why, time.Time{} // now
		if err := e.Orders.Decide(ctx, claim, i); err != nil {
			return order, err
		}
	}
	return e.Orders.Get(ctx, order.ProjectID, order.ID)
}
