package orders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// Observe lists the order's servers by tag, and stores their states, so that none is made twice. A server that is not
// listed counts as deleted only if Nova does not know its id either. It returns the stored order, which may be newer.
func (e Engine) Observe(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	now, err := e.Orders.Now(ctx) // before Nova answers
	if err != nil {
		return order, err
	}
	found, err := lookup.ServersOfOrder(ctx, cloud, order)
	if err != nil {
		return order, err
	}
	var changed []domain.Instance
	for _, i := range order.Instances {
		var server domain.Server
		own, adopted, ok := order.OwnServer(i, found)
		switch {
		case ok:
			i, server = adopted, own
		case i.ServerID == "" || i.State == domain.InstanceDeleted:
			continue
		default:
			if server, err = confirmDeleted(ctx, cloud, i.ServerID); err != nil {
				return order, err
			}
		}
		if i.Found(server) {
			i.SeenAt = now
			changed = append(changed, i)
		}
	}
	lookup.Explain(ctx, cloud, changed)
	if order, err = e.store(ctx, order, changed); err != nil {
		return order, err
	}
	if order.ReadAt.After(now) {
		order.ReadAt = now // a create call that was open then may have made its server since
	}
	return order, e.removeExtras(ctx, cloud, order, found)
}

// store stores changed instances and reads the order back. An order without changes is only read if time decides about
// it: it waits for the end of a create call's fence, or is rolled back; or if steps are stored that change no state.
func (e Engine) store(ctx context.Context, order domain.Order, changed []domain.Instance) (domain.Order, error) {
	if len(changed) == 0 && !order.WaitsForCalls() && !order.RollingBack() &&
		!order.Spec.SetsVolumes && !order.Spec.SetsGroups && !order.Spec.FloatingIPs {
		return order, nil
	}
	if len(changed) > 0 {
		if err := e.change(ctx, changed...); err != nil {
			return order, err
		}
	}
	return e.Orders.Get(ctx, order.ProjectID, order.ID)
}

// confirmDeleted reads a server by its id that no list shows.
func confirmDeleted(ctx context.Context, cloud Cloud, id string) (domain.Server, error) {
	server, err := cloud.Server(ctx, id)
	if apperr.CodeOf(err) == apperr.NotFound {
		return domain.Server{ID: id, Status: "DELETED", Partial: true}, nil
	}
	return server, err
}

// Refresh observes the order's servers, and takes the order's other steps if no replica does. The session may be one
// that can only read.
func (e Engine) Refresh(ctx context.Context, s Session, order domain.Order) (domain.Order, error) {
	if order.Spec.NeedsReconcile() && order.Status == domain.OrderRunning {
		claim, err := e.Claim(ctx, order)
		if err != nil {
			return order, err
		}
		if claim.Acquired {
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
	return e.Finalize(ctx, s.keysOf(order), order)
}

// Advance takes the order's steps once, unless another replica works on it. It requests no servers.
func (e Engine) Advance(ctx context.Context, order domain.Order, use func(do func(Session) error) error) error {
	claim, err := e.Claim(ctx, order)
	if err != nil || !claim.Acquired {
		return err
	}
	claimed, stop := e.keepClaim(ctx, order, claim)
	defer stop()
	stored, err := e.Orders.Get(claimed, order.ProjectID, order.ID) // under the claim: all create calls are known
	if err == nil {
		err = use(func(s Session) error {
			_, errs := e.step(claimed, s, stored, claim)
			if err := denied(errs); err != nil {
				return err // first: the session may have to be renewed
			}
			return errors.Join(errs...)
		})
	}
	stop()
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return errors.Join(err, e.Orders.Release(end, order, claim))
}

// awaitCalls waits until Nova is done with the create calls of a replica that died: each has made its server, which is
// then adopted, or will never make it. If the time is up before that, the error is ErrOpen.
func (e Engine) awaitCalls(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	for order.HasOpenCall() {
		if untilEnd(ctx) < observePause || !flow.Sleep(ctx, observePause) {
			return order, ErrOpen
		}
		var err error
		if order, err = e.Observe(ctx, cloud, order); err != nil {
			return order, err
		}
	}
	return order, nil
}

// ErrKeyLeft means that an order cannot be finalized yet, because its key pair could not be deleted.
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

// RemoveExtra handles a server that carries the instance's tags and is not its own. One that a create call of the
// running order provably made is deleted: Nova took so long over the call that it was repeated. Any other is not
// touched, and one event reports it. The order must have been read after the server was listed.
func (e Engine) RemoveExtra(
	ctx context.Context, cloud Cloud, order domain.Order, i domain.Instance, s domain.Server,
) error {
	var err error
	call, isProven := order.Duplicate(i, s)
	if isProven {
		isProven, err = IsOldest(ctx, cloud, call.ID, s)
	}
	if isProven && err == nil {
		// A call makes one server. Once that is stored, no other server with its tags passes for it.
		isProven, err = e.Orders.MarkDuplicate(ctx, order, call, s.ID)
	}
	switch {
	case err != nil:
		return err
	case !isProven:
		return e.publishUnexpected(ctx, i, s)
	}
	err = cloud.DeleteServer(ctx, s.ID)
	slog.WarnContext(ctx, "deleting a server that was made twice", "project_id", order.ProjectID, "order_id", order.ID,
		"instance_id", i.ID, "server_id", s.ID, "call_id", call.ID, "error", err)
	return err
}

// IsOldest reports whether no older server carries the tag of the create call: a server with copied tags is younger.
func IsOldest(ctx context.Context, cloud lookup.Lister, call uuid.UUID, s domain.Server) (bool, error) {
	tagged, err := lookup.ServersByTag(ctx, cloud, domain.CallTag(call))
	return err == nil && s.IsOldest(tagged), err
}

func (e Engine) publishUnexpected(ctx context.Context, i domain.Instance, s domain.Server) error {
	published, err := e.Orders.PublishUnexpected(ctx, i, s)
	if published {
		slog.WarnContext(ctx, "a server carries the tags of an instance and is not its own: it is not touched",
			"project_id", i.ProjectID, "order_id", i.OrderID, "instance_id", i.ID, "server_id", s.ID,
			"server_name", s.Name)
	}
	return err
}

// removeExtras handles the servers among found that carry tags of the order's instances and are not theirs.
func (e Engine) removeExtras(ctx context.Context, cloud Cloud, order domain.Order, found []domain.Server) error {
	if !hasExtras(order, found) {
		return nil
	}
	// Only the order as it is now shows a call that began while Nova was queried.
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID)
	if err != nil {
		return err
	}
	for _, i := range order.Instances {
		for _, s := range order.Extras(i, found) {
			if err := e.RemoveExtra(ctx, cloud, order, i, s); err != nil {
				slog.WarnContext(ctx, "a server that its order does not need was not removed: it is retried later",
					"order_id", order.ID, "server_id", s.ID, "error", err)
			}
		}
	}
	return nil
}

func hasExtras(order domain.Order, found []domain.Server) bool {
	for _, i := range order.Instances {
		if len(order.Extras(i, found)) > 0 {
			return true
		}
	}
	return false
}
