package orders

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// step takes the next step of each instance. hasMore reports whether there is anything to observe: not when all that is
// left is to request servers. errs has an error for each instance; nil if all is well.
func (e Engine) step(
	ctx context.Context, s Session, order domain.Order, claim domain.Claim,
) (hasMore bool, errs []error) {
	var all sync.WaitGroup
	errs = make([]error, len(order.Instances))
	slots := make(chan struct{}, Parallel)
	for n, step := range order.Next() {
		i := order.Instances[n]
		isIdle := step == domain.StepNone || step == domain.StepCreate
		hasMore = hasMore || !isIdle || step == domain.StepNone && i.Decided() || order.RollingBack() && !i.Decided()
		if isIdle {
			continue
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[n] = e.take(ctx, s.Cloud, order, claim, i, step)
			if errs[n] != nil {
				slog.WarnContext(ctx, "order step", "project_id", order.ProjectID, "instance_id", i.ID, "step", step,
					"error", errs[n])
			}
			if step != domain.StepDelete && apperr.CodeOf(errs[n]) == apperr.Conflict {
				errs[n] = nil // the server is locked, or its state has changed; the next observation stores it
			}
		})
	}
	all.Wait()
	return hasMore, errs
}

// denied is the first error by which Nova permits no step with this session. Any other concerns one server only.
func denied(errs []error) error {
	n := slices.IndexFunc(errs, func(err error) bool {
		code := apperr.CodeOf(err)
		return code == apperr.Unauthenticated || code == apperr.Forbidden
	})
	if n < 0 {
		return nil
	}
	return errs[n]
}

// take takes one step, and stores at once that Nova has accepted it.
func (e Engine) take(
	ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, i domain.Instance, step domain.Step,
) error {
	next, err := domain.InstanceUpdating, error(nil)
	switch step {
	case domain.StepForgo:
		return e.forgo(ctx, cloud, order, claim, i)
	case domain.StepStop:
		err = cloud.StopServer(ctx, i.ServerID)
	case domain.StepStart:
		err = cloud.StartServer(ctx, i.ServerID)
	case domain.StepDelete:
		next, err = domain.InstanceDeleting, i.DeleteServer(ctx, cloud, e.Instances, order.CreatedAt)
	}
	if err != nil {
		return err
	}
	i.State, i.SeenAt = next, order.ReadAt // newer observations win
	return e.change(ctx, i)
}

// forgo stores that an instance is not requested any more, unless it has a server after all.
func (e Engine) forgo(
	ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, i domain.Instance,
) error {
	found, err := lookup.ServersByTag(ctx, cloud, i.ID.String())
	if err != nil {
		return err
	}
	i.SeenAt = order.ReadAt
	if server, adopted, ok := order.OwnServer(i, found); ok {
		adopted.Found(server)
		return e.change(ctx, adopted)
	}
	i.State, i.Problem = domain.InstanceError, domain.Forgone()
	defer e.Wake()
	return e.Orders.Decide(ctx, claim, i)
}

// change stores the states of instances, and wakes the functions that have work after it.
func (e Engine) change(ctx context.Context, known ...domain.Instance) error {
	published, err := e.Instances.Change(ctx, known)
	if published > 0 {
		e.Wake()
	}
	return err
}
