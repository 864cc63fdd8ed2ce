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

// ErrOpen says that Nova may or may not have made the server.
var ErrOpen = errors.New("it is open whether nova made the server")

// errLate says that a create call was not sent: Nova could not answer it before its fence ends, when the next one may
// be sent.
var errLate = apperr.New(apperr.Unavailable, "this replica was held up, and sent nothing to nova")

// create asks Nova for one server and writes its answer, if that is final.
func (e Engine) create(
	ctx context.Context, s Session, order domain.Order, claim domain.Claim, i domain.Instance, userData domain.Secret,
) (domain.Instance, error) {
	if err := ctx.Err(); err != nil {
		return i, err // another one failed, or the time is up: nothing was sent for this one
	}
	call := domain.CreateCall{ID: uuid.New(), InstanceID: i.ID, Name: i.Name, UserID: s.UserID}
	began := time.Now() // before the fence does
	if err := e.Orders.BeginCall(ctx, order, claim, call, e.claimFor(), e.Fence); errors.Is(err, domain.ErrCallOpen) {
		return i, nil // somebody has found its server meanwhile
	} else if err != nil {
		return i, err
	}
	// Not canceled when another create fails: Nova would go on, and its answer would be lost.
	until := began.Add(e.Fence * 2 / 3)
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(longestFinish/2).Before(until) {
		until = deadline.Add(longestFinish / 2)
	}
	asking, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	if asking.Err() != nil {
		return i, errors.Join(errLate, e.endCall(ctx, order, call))
	}
	id, err := s.Cloud.CreateServer(asking, i.Spec, i.Name, userData, tags(order, call))
	// What others saw of the server meanwhile is newer than the answer, which may be written late.
	i.CallID, i.SeenAt = call.ID, order.ReadAt
	switch {
	case err == nil:
		i.ServerID, i.State, i.RawStatus = id, domain.InstanceBuilding, "BUILD"
	case apperr.Final(err):
		i.State, i.Problem = domain.InstanceError, &domain.Problem{Code: string(apperr.CodeOf(err)), Detail: apperr.As(err).Message}
	case sentNothing(err):
		return i, errors.Join(err, e.endCall(ctx, order, call))
	default:
		slog.WarnContext(ctx, "open create", "instance_id", i.ID, "error", err)
		return i, errors.Join(ErrOpen, err)
	}
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return i, e.Orders.Decide(end, claim, i)
}

// endCall writes that a create call made nothing.
func (e Engine) endCall(ctx context.Context, order domain.Order, call domain.CreateCall) error {
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return e.Orders.EndCall(end, order, call)
}

// tags are how a server is found later: by its instance, all of an order at once, and by the very call that made it.
func tags(order domain.Order, call domain.CreateCall) []string {
	return []string{call.InstanceID.String(), domain.OrderTag(order.ID), domain.CallTag(call.ID)}
}

// sentNothing says whether Nova surely made nothing, although it did not refuse for good.
func sentNothing(err error) bool {
	code := apperr.CodeOf(err)
	return code == apperr.Unauthenticated || code == apperr.RateLimited || errors.Is(err, apperr.ErrNotSent)
}
