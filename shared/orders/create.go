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
var ErrOpen = errors.New("it is unknown whether nova made the server")

// errLate says that a create call was not sent: Nova could not answer it before its fence ends, when the next one may
// be sent.
var errLate = apperr.New(apperr.Unavailable, "this replica was too slow, and sent nothing to nova")

// create requests one server from Nova and stores the answer, if it is final.
func (e Engine) create(
	ctx context.Context, s Session, order domain.Order, claim domain.Claim, i domain.Instance, userData domain.Secret,
) (domain.Instance, error) {
	if err := ctx.Err(); err != nil {
		return i, err // another call failed, or the time is up: nothing was sent
	}
	call := domain.CreateCall{ID: uuid.New(), InstanceID: i.ID, Name: i.Name, UserID: s.UserID}
	began := time.Now() // before the fence does
	err := e.Orders.BeginCall(ctx, order, claim, call, e.claimFor(), e.Fence)
	switch {
	case errors.Is(err, domain.ErrCallOpen):
		return i, nil // its server was found meanwhile
	case err != nil:
		return i, err
	}
	// Not canceled when another create fails: Nova would continue, and its answer would be lost.
	until := began.Add(e.Fence * 2 / 3)
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(longestFinish/2).Before(until) {
		until = deadline.Add(longestFinish / 2)
	}
	calling, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	if calling.Err() != nil {
		return i, errors.Join(errLate, e.endCall(ctx, order, call))
	}
	id, err := s.Cloud.CreateServer(calling, i.Spec, i.Name, userData, order.ServerTags(i, call))
	// What others observed meanwhile is newer than the answer, which may be stored late.
	i.CallID, i.SeenAt = call.ID, order.ReadAt
	switch {
	case err == nil:
		i.ServerID, i.State, i.RawStatus = id, domain.InstanceBuilding, "BUILD"
	case apperr.Final(err):
		i.State = domain.InstanceError
		i.Problem = domain.ProblemOf(err)
	case apperr.Rejected(err): // though not for good
		return i, errors.Join(err, e.endCall(ctx, order, call))
	default:
		slog.WarnContext(ctx, "open create", "instance_id", i.ID, "error", err)
		return i, errors.Join(ErrOpen, err)
	}
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return i, e.Orders.Decide(end, claim, i)
}

// endCall stores that a create call made nothing.
func (e Engine) endCall(ctx context.Context, order domain.Order, call domain.CreateCall) error {
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return e.Orders.EndCall(end, order, call)
}
