package orders

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

const (
	// Parallel is how many calls there are to OpenStack at once, for one order.
	Parallel = 4
	// Of the time that there is, kept for writing down what happened: a quarter, up to this much.
	longestFinish = 10 * time.Second
	observePause  = 1500 * time.Millisecond // between two observations of an order that Nova works on
	longestClaim  = 15 * time.Second
)

// work does what is to be done of the order. The error says why it has stopped before its end.
func (e Engine) work(ctx context.Context, s Session, order domain.Order, claim domain.Claim) (err error) {
	deadline, _ := ctx.Deadline()
	finishing := min(longestFinish, time.Until(deadline)/4)
	working, cancel := context.WithDeadline(ctx, deadline.Add(-finishing))
	defer cancel()
	working, stop := e.hold(working, order, claim)
	defer stop()
	if !claim.Fresh {
		order, err = e.resume(working, s.Cloud, order)
	}
	if err == nil && s.UserData != nil && !order.RollingBack() {
		err = e.launch(working, s, order, claim)
	}
	isFollowed := s.Follows || order.Spec.Attended()
	if isFollowed && !errors.Is(err, ErrOpen) && !errors.Is(err, domain.ErrFenced) && !s.stops(err) {
		err = errors.Join(err, e.follow(working, s, order, claim))
	}
	if errors.Is(context.Cause(working), domain.ErrFenced) {
		return errors.Join(domain.ErrFenced, err)
	}
	stop() // an unanswered create call is fenced by itself
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return errors.Join(err, e.Orders.Release(end, order, claim))
}

func (s Session) stops(err error) bool { return err != nil && s.IsFatal != nil && s.IsFatal(err) }

// resume observes an order that another replica has begun. Its create calls are read under the claim, so that all are
// known.
func (e Engine) resume(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID)
	if err != nil {
		return order, err
	}
	return e.Observe(ctx, cloud, order)
}

// launch asks Nova for every server of the order that is undecided.
func (e Engine) launch(ctx context.Context, s Session, order domain.Order, claim domain.Claim) (err error) {
	if order, err = e.awaitCalls(ctx, s.Cloud, order); err != nil || order.RollingBack() {
		return err
	}
	if s.Prepare != nil {
		if order, err = s.Prepare(ctx, order, claim); err != nil {
			return err
		}
	}
	if order.Undecided() == 0 {
		return nil
	}
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(width(working, s.Cloud, order))
	var isOpen, isRefused atomic.Bool
	for n, i := range order.Instances {
		if i.Decided() {
			continue
		}
		group.Go(func() error {
			if isRefused.Load() && order.Spec.OnFailure == domain.Rollback {
				return nil // it would only have to be deleted again
			}
			i, err := e.create(working, s, order, claim, i, s.UserData[n])
			if i.Problem != nil {
				isRefused.Store(true)
			}
			if errors.Is(err, ErrOpen) {
				isOpen.Store(true)
			}
			return err
		})
	}
	err = group.Wait()
	e.Wake()
	if isOpen.Load() {
		return errors.Join(ErrOpen, err)
	}
	return err
}

// width is how many servers are asked for at once: one when they do not all fit the quota. Nova counts again after
// it has made a server, and of several that come together more than need be may end in ERROR; one by one, fewer do.
func width(ctx context.Context, cloud Cloud, order domain.Order) int {
	var need domain.Need
	for _, i := range order.Instances {
		if !i.Decided() {
			need.Add(i.Spec)
		}
	}
	if need.Instances < 2 {
		return 1
	}
	quota, err := cloud.Quota(ctx)
	if err != nil || !quota.Fits(need) {
		return 1
	}
	return Parallel
}

// follow observes the order's servers, and takes the order's steps, until it is settled or the time is up. What goes
// wrong with one server comes up again at the next observation.
func (e Engine) follow(ctx context.Context, s Session, order domain.Order, claim domain.Claim) error {
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID)
	for ; err == nil || apperr.Retryable(err) && !s.stops(err); time.Sleep(observePause) {
		if untilEnd(ctx) < observePause {
			return nil
		}
		if err := e.Orders.Renew(ctx, order, claim, e.claimFor()); err != nil {
			return err
		}
		if order, err = e.Observe(ctx, s.Cloud, order); err != nil {
			continue
		}
		if order.Evaluate() != domain.OrderRunning || order.HasReplaced() {
			return nil // that is for Prepare, at the next time
		}
		if hasMore, err := e.step(ctx, s, order, claim); err != nil || !hasMore {
			return err
		}
	}
	return err
}

func untilEnd(ctx context.Context) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	end, _ := ctx.Deadline()
	return time.Until(end)
}

// step does what is to be done now for each instance. hasMore says whether there is anything to observe: not when all
// that is left is to ask Nova for servers. The error is that Nova lets nobody with this session do it.
func (e Engine) step(ctx context.Context, s Session, order domain.Order, claim domain.Claim) (hasMore bool, err error) {
	var all sync.WaitGroup
	denied := make([]error, len(order.Instances))
	slots := make(chan struct{}, Parallel)
	for n, step := range order.Next() {
		i := order.Instances[n]
		hasMore = hasMore || order.RollingBack() && !i.Decided() || step != domain.StepCreate && (step != domain.StepNone || i.Decided())
		if step == domain.StepNone || step == domain.StepCreate {
			continue
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := e.take(ctx, s.Cloud, order, claim, i, step)
			if err != nil { // one server may be locked: the others are none the worse for it
				slog.WarnContext(ctx, "order step", "project_id", order.ProjectID, "instance_id", i.ID, "step", step, "error", err)
			}
			if code := apperr.CodeOf(err); code == apperr.Unauthenticated || code == apperr.Forbidden {
				denied[n] = err
			}
		})
	}
	all.Wait()
	return hasMore, errors.Join(denied...)
}

// take takes one step, and writes at once that it is under way.
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
	if step != domain.StepDelete && apperr.CodeOf(err) == apperr.Conflict {
		return nil // it is no longer as it was: the next observation says how
	}
	if err != nil {
		return err
	}
	i.State, i.SeenAt = next, order.ReadAt // what others saw since may be what came of it
	return e.change(ctx, i)
}

// forgo writes that an instance is not asked for any more, unless it has a server after all.
func (e Engine) forgo(ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, i domain.Instance) error {
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

// change writes what is known of instances, and wakes who has work after it.
func (e Engine) change(ctx context.Context, known ...domain.Instance) error {
	published, err := e.Instances.Change(ctx, known)
	if published > 0 {
		e.Wake()
	}
	return err
}
