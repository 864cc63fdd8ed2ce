package runconnections

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/ordering"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// orderStore is the part of the database that orders are worked on with.
type orderStore interface {
	ordering.Store
	Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	ReplaceReused(ctx context.Context, order domain.Order, claim domain.Claim, n int, has string, wanted domain.Instance) error
	Resolved(ctx context.Context, order domain.Order, claim domain.Claim) error
	Conclude(ctx context.Context, order domain.Order) error
}

// orderTime is for how long one order keeps its hands: then others have their turn.
const orderTime = 40 * time.Second

// order works on an order, if nobody else does.
func (s *service) order(ctx context.Context, c domain.Connection, id uuid.UUID) {
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	err := s.cloud.use(ctx, c, func(cloud session) error { return s.workOn(ctx, cloud, c, id) })
	if unopened, ok := errors.AsType[unopenedError](err); ok {
		s.unopened(ctx, c, unopened.cause)
		return
	}
	if code := apperr.CodeOf(err); code == apperr.Forbidden || code == apperr.Invalid || errors.Is(err, errTooLong) {
		slog.WarnContext(ctx, "an order is given up", "order_id", id, "connection_id", c.ID, "error", err)
		err = s.giveUp(ctx, c, id, problemOf(err))
	}
	if err == nil || errors.Is(err, domain.ErrFenced) {
		return
	}
	slog.WarnContext(ctx, "an order is gone on with later", "order_id", id, "connection_id", c.ID, "error", err)
	if mayBeLost(err) {
		s.postpone(ctx, c, id)
	}
}

// postpone leaves an order alone for a while whose cloud is not available, though Keystone accepts the delegation.
func (s *service) postpone(ctx context.Context, c domain.Connection, id uuid.UUID) {
	ctx, cancel := ending(ctx)
	defer cancel()
	order, err := s.orders.Get(ctx, c.ProjectID, id)
	if err == nil {
		err = s.delegations.Postpone(ctx, c.ProjectID, id, s.pauseFor(ctx, order.CreatedAt))
	}
	if err != nil {
		slog.WarnContext(ctx, "order not noted", "order_id", id, "error", err)
	}
}

// pauseFor is how long work is left alone that fails: the longer, the older it is.
func (s *service) pauseFor(ctx context.Context, since time.Time) time.Duration {
	now, err := s.clock.Now(ctx)
	if err != nil {
		return retryPause
	}
	return min(max(now.Sub(since)/8, retryPause), longestRetry)
}

// problemOf is why something could not be had or done, in the words that its caller is told.
func problemOf(err error) *domain.Problem {
	e := apperr.As(err)
	return &domain.Problem{Code: string(e.Code), Detail: e.Message}
}

// errTooLong ends an order that Nova does not let come to its end, such as one whose server somebody has locked.
var errTooLong = apperr.New(apperr.Conflict, "it could not be had within %s", retryFor)

// workOn asks for the order's servers and looks at them until the order is settled or the time is up; then it concludes it.
func (s *service) workOn(ctx context.Context, cloud session, c domain.Connection, id uuid.UUID) error {
	order, err := s.orders.Get(ctx, c.ProjectID, id)
	if err != nil || order.Status != domain.OrderRunning {
		return err
	}
	now, err := s.orders.Now(ctx)
	if err != nil {
		return err
	}
	if now.Sub(order.CreatedAt) > retryFor {
		return errTooLong
	}
	wanted, err := s.openOrder(order)
	if err != nil {
		return err
	}
	claim, err := s.orders.Claim(ctx, order, ordering.ClaimFor(claimFor))
	if err != nil || !claim.Held {
		return err
	}
	wish := ordering.Wish{UserData: make([]domain.Secret, len(wanted.Servers))}
	for n, server := range wanted.Servers {
		wish.UserData[n] = domain.Secret(server.UserData)
	}
	wish.Prepare = func(ctx context.Context, order domain.Order) (domain.Order, error) {
		return preparing{s, cloud, c, wanted, claim}.prepare(ctx, order)
	}
	worker := ordering.Worker{Orders: s.orders, Instances: s.instances, Tell: func() { s.wakeFor(c) }, Claim: claimFor, StopsAt: mayBeLost}
	err = worker.Work(ctx, cloud, order, claim, &wish)
	return errors.Join(err, s.conclude(ctx, cloud, c, id))
}

// openOrder opens what was sealed with the order.
func (s *service) openOrder(order domain.Order) (wanted domain.DelegatedOrder, err error) {
	err = s.unseal(order.SealedFor(), order.Payload, &wanted)
	if err == nil && len(wanted.Servers) != len(order.Instances) {
		err = damaged(nil)
	}
	return wanted, err
}

// unseal opens what was sealed with an order or an action. That we do not have its key is our own mistake, and may be mended.
func (s *service) unseal(purpose string, sealed []byte, into any) error {
	text, err := s.seal.Open(purpose, sealed)
	switch {
	case errors.Is(err, seal.ErrOtherKey):
		return unopenedError{err}
	case err != nil:
		return damaged(err)
	case json.Unmarshal([]byte(text.Reveal()), into) != nil: // whose error may quote it
		return damaged(nil)
	}
	return nil
}

func damaged(cause error) error {
	return apperr.Wrap(apperr.Invalid, cause, "what was handed over with the request is damaged: send it again")
}

// conclude writes the status that follows from the order's instances. Of one of which nothing stays, nothing may be left.
func (s *service) conclude(ctx context.Context, cloud session, c domain.Connection, id uuid.UUID) error {
	ctx, cancel := ending(ctx)
	defer cancel()
	order, err := s.orders.Get(ctx, c.ProjectID, id)
	if err != nil {
		return err
	}
	status := order.Evaluate()
	if status == order.Status {
		return nil
	}
	if err := clearAway(ctx, cloud, order, status); err != nil {
		return err
	}
	order.Status, order.Problem = status, order.LeftProblem()
	defer s.wakeFor(c)
	return s.orders.Conclude(ctx, order)
}

// clearAway deletes the key pair of an order of which nothing came: its owner alone could. One of that name that was there before is
// his, and its fingerprint was never noted.
func clearAway(ctx context.Context, cloud session, order domain.Order, status domain.OrderStatus) error {
	key := order.Spec.GeneratedKey
	made := slices.ContainsFunc(order.Instances, func(i domain.Instance) bool { return i.ServerID != "" })
	given := slices.ContainsFunc(order.Instances, func(i domain.Instance) bool { return i.KeyName == key && i.KeyFingerprint != "" })
	if key == "" || !given || status != domain.OrderRolledBack && (status != domain.OrderFailed || made) {
		return nil
	}
	return cloud.DeleteKeyPair(ctx, key)
}

// giveUp ends an order on which nobody can work any more, if nobody does: what is undecided of it is not had, and the rest is as it is.
func (s *service) giveUp(ctx context.Context, c domain.Connection, id uuid.UUID, why *domain.Problem) error {
	ctx, cancel := ending(ctx)
	defer cancel()
	key := domain.Order{ID: id, ProjectID: c.ProjectID}
	claim, err := s.orders.Claim(ctx, key, claimFor)
	if err != nil || !claim.Held {
		return err
	}
	return errors.Join(s.giveUpClaimed(ctx, c, key, claim, why), s.orders.Release(ctx, key, claim))
}

func (s *service) giveUpClaimed(ctx context.Context, c domain.Connection, key domain.Order, claim domain.Claim, why *domain.Problem) error {
	order, err := s.orders.Get(ctx, key.ProjectID, key.ID) // under the claim, so that all create calls are known
	if err != nil || order.HasOpenCall() {
		return err // Nova may still be making a server: the next tick knows more
	}
	for _, i := range order.Instances {
		if i.Decided() {
			continue
		}
		i.State, i.Problem, i.SeenAt = domain.InstanceError, why, time.Time{} // now
		if err := s.orders.Decide(ctx, claim, i); err != nil {
			return err
		}
	}
	if order, err = s.orders.Get(ctx, key.ProjectID, key.ID); err != nil {
		return err
	}
	defer s.wakeFor(c)
	order.Status, order.Problem = order.Abandoned(), why
	return s.orders.Conclude(ctx, order)
}

// endedBy is why nothing more is done through a connection that has ended.
func endedBy(c domain.Connection) *domain.Problem {
	switch {
	case c.Status == domain.ConnectionLost:
		return &domain.Problem{Code: string(apperr.DelegationLost), Detail: "the connection cannot be acted through any more: " + c.Reason}
	case c.Reason == "":
		return &domain.Problem{Code: string(apperr.Forbidden), Detail: "the connection has ended"}
	}
	return &domain.Problem{Code: string(apperr.Forbidden), Detail: "the connection has ended: " + c.Reason}
}

// abandon gives up all that waits of a connection that has ended.
func (s *service) abandon(ctx context.Context, c domain.Connection) {
	why := endedBy(c)
	if c.Status != domain.ConnectionLost { // of a lost one it is kept that nobody is to log in again
		s.cloud.forget(c.ID)
	}
	err := s.abandonActions(ctx, c, why)
	ids, listing := s.delegations.Orders(ctx, c.ProjectID, c.ID, listed)
	err = errors.Join(err, listing)
	for _, id := range ids {
		err = errors.Join(err, s.giveUp(ctx, c, id, why))
	}
	if err != nil {
		slog.WarnContext(ctx, "what waits of an ended connection is given up later", "connection_id", c.ID, "error", err)
	}
}
