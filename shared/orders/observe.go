package orders

import (
	"context"
	"errors"
	"log/slog"

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
// it: it waits for the end of a create call's fence, or is rolled back.
func (e Engine) store(ctx context.Context, order domain.Order, changed []domain.Instance) (domain.Order, error) {
	if len(changed) == 0 && !order.WaitsForCalls() && !order.RollingBack() {
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
	if order.Spec.Attended() && order.Status == domain.OrderRunning {
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
