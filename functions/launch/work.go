package launch

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
)

const (
	parallel = 4 // calls to Nova at once, per order
	// Of the request's time, kept for writing down what happened: a quarter, up to this much.
	longestFinish = 10 * time.Second
	lookAgain     = 1500 * time.Millisecond // between two looks at an order that Nova works on
	// What is known is written down also when the request's time is up; a database that hangs must not hold the copy.
	endTimeout = 5 * time.Second
)

// work does what is to be done of the order, under a claim. What it cannot decide is left to whoever sends the order
// again; the error says why. items are what each server is made of besides what is stored; without them none is made.
func (s service) work(ctx context.Context, cloud session, order domain.Order, claim domain.Claim, items []item) (key domain.Secret, err error) {
	deadline, _ := ctx.Deadline()
	finishing := min(longestFinish, time.Until(deadline)/4)
	working, cancel := context.WithDeadline(ctx, deadline.Add(-finishing))
	defer cancel()
	if !claim.Fresh {
		order, err = s.observe(working, cloud, order) // somebody has begun it
	}
	if err == nil && items != nil && !order.RollingBack() {
		key, err = s.launch(working, cloud, order, claim, items)
	}
	if order.Spec.Attended() && !errors.Is(err, errOpen) && !errors.Is(err, domain.ErrFenced) {
		err = errors.Join(err, s.attend(working, cloud, order, claim))
	}
	if errors.Is(err, errOpen) {
		return key, err // the claim runs on: nobody asks again before Nova has surely finished
	}
	end, cancel := ending(ctx)
	defer cancel()
	return key, errors.Join(err, s.orders.Release(end, order, claim))
}

// ending is a context for what is to be written down in any case.
func ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
}

// launch asks Nova for every server of the order that is undecided.
func (s service) launch(ctx context.Context, cloud session, order domain.Order, claim domain.Claim, items []item) (domain.Secret, error) {
	order, key, err := s.giveKey(ctx, cloud, order, claim)
	if err != nil || order.Undecided() == 0 {
		return key, err
	}
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(width(working, cloud, order))
	var open, refused atomic.Bool
	for n, i := range order.Instances {
		if i.Decided() {
			continue
		}
		group.Go(func() error {
			if refused.Load() && order.Spec.OnFailure == domain.Rollback {
				return nil // it would only have to be deleted again
			}
			i, err := s.create(working, cloud, order, claim, i, items[n].userData)
			if i.Problem != nil {
				refused.Store(true)
			}
			if errors.Is(err, errOpen) {
				open.Store(true)
			}
			return err
		})
	}
	err = group.Wait()
	s.tell()
	if open.Load() {
		return key, errors.Join(errOpen, err)
	}
	return key, err
}

// width is how many servers are asked for at once: one when they do not all fit the quota. Nova counts again after
// it has made a server, and of several that come together more than need be may end in ERROR; one by one, fewer do.
func width(ctx context.Context, cloud session, order domain.Order) int {
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
	return parallel
}

// errOpen says that Nova may or may not have made the server.
var errOpen = errors.New("it is open whether nova made the server")

// create asks Nova for one server and writes down what it says, if it says anything final.
func (s service) create(
	ctx context.Context, cloud session, order domain.Order, claim domain.Claim, i domain.Instance, userData domain.Secret,
) (domain.Instance, error) {
	if err := ctx.Err(); err != nil {
		return i, err // another one failed, or the time is up: nothing was sent for this one
	}
	if err := s.orders.Renew(ctx, order, claim, s.claim); err != nil {
		return i, err
	}
	// Not canceled when another create fails: Nova would go on, and nobody would hear its answer.
	limit := s.claim * 2 / 3
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)+longestFinish/2)
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	id, err := cloud.CreateServer(asking, i.Spec, i.Name, userData, tags(order, i))
	switch {
	case err == nil:
		i.ServerID, i.State, i.RawStatus = id, domain.InstanceBuilding, "BUILD"
	case final(err):
		i.State, i.Problem = domain.InstanceError, &domain.Problem{Code: string(apperr.CodeOf(err)), Detail: apperr.As(err).Message}
	case sentNothing(err):
		return i, err
	default:
		slog.WarnContext(ctx, "open create", "instance_id", i.ID, "error", err)
		return i, errors.Join(errOpen, err)
	}
	end, cancel := ending(ctx)
	defer cancel()
	return i, s.orders.Decide(end, claim, i)
}

// tags are how a server is found again: by its instance, and all of an order at once.
func tags(order domain.Order, i domain.Instance) []string {
	return []string{i.ID.String(), domain.OrderTag(order.ID)}
}

// final says whether Nova refused for good: the same call would be refused again.
func final(err error) bool {
	switch apperr.CodeOf(err) {
	case apperr.Invalid, apperr.Forbidden, apperr.Quota, apperr.NotFound, apperr.Conflict, apperr.TooLarge, apperr.Unsupported:
		return true
	}
	return false
}

// sentNothing says whether Nova surely made nothing, although it did not refuse for good.
func sentNothing(err error) bool {
	code := apperr.CodeOf(err)
	return code == apperr.Unauthenticated || code == apperr.RateLimited || errors.Is(err, apperr.ErrNotSent)
}

// attend looks at the order's servers, and stops or deletes them as the order wants it, until it is settled or the time is
// up. What goes wrong with one server comes up again at the next look.
func (s service) attend(ctx context.Context, cloud session, order domain.Order, claim domain.Claim) error {
	order, err := s.orders.Get(ctx, order.ProjectID, order.ID)
	for ; err == nil || apperr.Retryable(err); time.Sleep(lookAgain) {
		if left := untilEnd(ctx); left < lookAgain {
			return nil
		}
		if err := s.orders.Renew(ctx, order, claim, s.claim); err != nil {
			return err
		}
		if order, err = s.observe(ctx, cloud, order); err != nil {
			continue
		}
		if order.Evaluate() != domain.OrderRunning || !s.step(ctx, cloud, order, claim) {
			return nil
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

// step does what is to be done now for each instance. It says whether there is anything to look at again: not when all
// that is left is to ask Nova for servers.
func (s service) step(ctx context.Context, cloud session, order domain.Order, claim domain.Claim) (more bool) {
	var all sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for n, step := range order.Next() {
		i := order.Instances[n]
		more = more || step != domain.StepCreate && (step != domain.StepNone || i.Decided())
		if step == domain.StepNone || step == domain.StepCreate {
			continue
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := s.do(ctx, cloud, claim, i, step); err != nil {
				slog.WarnContext(ctx, "order step", "instance_id", i.ID, "step", step, "error", err)
			}
		})
	}
	all.Wait()
	return more
}

func (s service) do(ctx context.Context, cloud session, claim domain.Claim, i domain.Instance, step domain.Step) error {
	switch step {
	case domain.StepStop:
		return cloud.StopServer(ctx, i.ServerID)
	case domain.StepDelete:
		return cloud.DeleteServer(ctx, i.ServerID)
	}
	i.State, i.Problem = domain.InstanceError, domain.Forgone()
	return s.orders.Decide(ctx, claim, i)
}
