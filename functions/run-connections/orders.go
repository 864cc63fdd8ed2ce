package runconnections

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// orderTime is for how long one order keeps its worker: then others are worked on.
const orderTime = 40 * time.Second

func (s *service) engine(c domain.Connection) orders.Engine {
	return orders.Engine{Orders: s.orders, Instances: s.instances, Wake: func() { s.wakeFor(c) }, Fence: claimFor}
}

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
		slog.WarnContext(ctx, "an order is abandoned", "order_id", id, "connection_id", c.ID, "error", err)
		err = s.engine(c).Abandon(ctx, c.ProjectID, id, domain.ProblemOf(err))
	}
	if err == nil || errors.Is(err, domain.ErrFenced) {
		return
	}
	slog.WarnContext(ctx, "an order is resumed later", "order_id", id, "connection_id", c.ID, "error", err)
	if mayBeLost(err) {
		s.postpone(ctx, c, id)
	}
}

// postpone delays an order whose cloud is not available although Keystone accepts the delegation.
func (s *service) postpone(ctx context.Context, c domain.Connection, id uuid.UUID) {
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	order, err := s.orders.Get(ctx, c.ProjectID, id)
	if err == nil {
		err = s.delegations.Postpone(ctx, c.ProjectID, id, s.pauseFor(ctx, order.CreatedAt))
	}
	if err != nil {
		slog.WarnContext(ctx, "order not postponed", "order_id", id, "error", err)
	}
}

// pauseFor is the pause of work that fails. It grows with the age of the work.
func (s *service) pauseFor(ctx context.Context, since time.Time) time.Duration {
	now, err := s.db.Now(ctx)
	if err != nil {
		return retryPause
	}
	return min(max(now.Sub(since)/8, retryPause), longestRetry)
}

// errTooLong ends an order that Nova never finishes, such as one whose server somebody has locked.
var errTooLong = apperr.New(apperr.Conflict, "it could not be had within %s", retryFor)

// workOn has the engine work on the order until it is settled or the time is up.
func (s *service) workOn(ctx context.Context, cloud session, c domain.Connection, id uuid.UUID) error {
	order, err := s.orders.Get(ctx, c.ProjectID, id)
	if err != nil || order.Status != domain.OrderRunning {
		return err
	}
	if order.ReadAt.Sub(c.WaitingSince(order.CreatedAt)) > retryFor {
		return errTooLong
	}
	wanted, err := s.openOrder(order)
	if err != nil {
		return err
	}
	claim, err := s.engine(c).Claim(ctx, order)
	if err != nil || !claim.Acquired {
		return err
	}
	session := orders.Session{
		Cloud: cloud, Keys: cloud, UserData: make([]domain.Secret, len(wanted.Servers)), IsFatal: mayBeLost,
		Follows: true,
	}
	for n, server := range wanted.Servers {
		session.UserData[n] = domain.Secret(server.UserData)
	}
	session.Prepare = func(ctx context.Context, order domain.Order, claim domain.Claim) (domain.Order, error) {
		return preparing{s, cloud, c, wanted, claim}.prepare(ctx, order)
	}
	_, unfinished, err := s.engine(c).Run(ctx, session, order, claim)
	return errors.Join(unfinished, err)
}

// openOrder decrypts the order's sealed part.
func (s *service) openOrder(order domain.Order) (wanted domain.DelegatedOrder, err error) {
	err = s.unseal(order.SealedFor(), order.Payload, &wanted)
	if err == nil && len(wanted.Servers) != len(order.Instances) {
		err = damaged(nil)
	}
	return wanted, err
}

// unseal decrypts the sealed part of an order or an action. A missing key is the operator's mistake, which may be
// repaired.
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

// endedBy is the problem of work that is abandoned because its connection has ended.
func endedBy(c domain.Connection) *domain.Problem {
	switch {
	case c.Status == domain.ConnectionLost:
		return &domain.Problem{
			Code:   string(apperr.DelegationLost),
			Detail: "the connection cannot be acted through any more: " + c.Reason,
		}
	case c.Reason == "":
		return &domain.Problem{Code: string(apperr.Forbidden), Detail: "the connection has ended"}
	}
	return &domain.Problem{Code: string(apperr.Forbidden), Detail: "the connection has ended: " + c.Reason}
}

// abandon ends the waiting orders and actions of a connection that has ended.
func (s *service) abandon(ctx context.Context, c domain.Connection) {
	why := endedBy(c)
	if c.Status != domain.ConnectionLost { // the entry of a lost connection stays, to prevent further logins
		s.cloud.forget(c.ID)
	}
	err := s.abandonActions(ctx, c, why)
	ids, listing := s.delegations.Orders(ctx, c.ProjectID, c.ID, listed)
	err = errors.Join(err, listing)
	for _, id := range ids {
		err = errors.Join(err, s.engine(c).Abandon(ctx, c.ProjectID, id, why))
	}
	if err != nil {
		slog.WarnContext(ctx, "what waits of an ended connection is abandoned later", "connection_id", c.ID,
			"error", err)
	}
}
