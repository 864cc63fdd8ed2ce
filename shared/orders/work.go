package orders

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
)

const (
	// Parallel is the number of simultaneous calls to OpenStack for one order.
	Parallel = 4
	// A quarter of the time, up to this much, is reserved for storing results.
	longestFinish = 10 * time.Second
	observePause  = 1500 * time.Millisecond // between two observations of an order
	longestClaim  = 15 * time.Second
)

// Run works on the order under a claim until ctx's deadline, which is required, finalizes it, and returns it as stored.
// unfinished is why the work stopped before its end: the next run continues it.
func (e Engine) Run(
	ctx context.Context, s Session, order domain.Order, claim domain.Claim,
) (stored domain.Order, unfinished, err error) {
	unfinished = e.work(ctx, s, order, claim)
	end, cancel := domain.Detached(ctx)
	defer cancel()
	stored, err = e.settle(end, s, order)
	return stored, unfinished, err
}

// work takes the order's steps. The error is why it stopped before its end.
func (e Engine) work(ctx context.Context, s Session, order domain.Order, claim domain.Claim) (err error) {
	deadline, _ := ctx.Deadline()
	finishing := min(longestFinish, time.Until(deadline)/4)
	working, cancel := context.WithDeadline(ctx, deadline.Add(-finishing))
	defer cancel()
	working, stop := e.keepClaim(working, order, claim)
	defer stop()
	if !claim.Fresh {
		var stored domain.Order
		if stored, err = e.resume(working, s.Cloud, order); err == nil { // else its claim is still released
			order = stored
		}
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

// resume observes an order that another replica has begun. Reading it under the claim shows all create calls.
func (e Engine) resume(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID)
	if err != nil {
		return order, err
	}
	return e.Observe(ctx, cloud, order)
}

// launch requests a server for every undecided instance.
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
	var isOpen, isRejected atomic.Bool
	for n, i := range order.Instances {
		if i.Decided() {
			continue
		}
		group.Go(func() error {
			if isRejected.Load() && order.Spec.OnFailure == domain.Rollback {
				return nil // the rollback would delete it
			}
			i, err := e.create(working, s, order, claim, i, s.UserData[n])
			if i.Problem != nil {
				isRejected.Store(true)
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

// width is how many servers are requested at once: one when they do not all fit the quota. Nova checks the quota once
// more after it has made a server, so more of several simultaneous requests than necessary may end in ERROR.
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

// follow observes the order's servers, and takes the order's steps, until it is settled or the time is up. A step that
// fails is retried after the next observation.
func (e Engine) follow(ctx context.Context, s Session, order domain.Order, claim domain.Claim) error {
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID)
	for ; err == nil || apperr.Retryable(err) && !s.stops(err); flow.Sleep(ctx, observePause) {
		if untilEnd(ctx) < observePause {
			return nil
		}
		if order, err = e.Observe(ctx, s.Cloud, order); err != nil {
			continue
		}
		if order.Evaluate() != domain.OrderRunning || order.HasReplaced() {
			return nil // Prepare of the next run replaces it
		}
		hasMore, errs := e.step(ctx, s, order, claim)
		if err := denied(errs); err != nil || !hasMore {
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

// keepClaim renews the claim until stop is called. When the claim is lost, the returned context ends with the cause
// domain.ErrFenced.
func (e Engine) keepClaim(
	ctx context.Context, order domain.Order, claim domain.Claim,
) (claimed context.Context, stop func()) {
	return due.Keep(ctx, claim, e.claimFor(), func(ctx context.Context) error {
		err := e.Orders.Renew(ctx, order, claim, e.claimFor())
		if errors.Is(err, domain.ErrFenced) {
			slog.WarnContext(ctx, "claim lost: another replica may work on the order", "order_id", order.ID)
		}
		return err
	})
}
