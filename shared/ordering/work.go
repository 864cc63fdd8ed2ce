// Package ordering works on orders: it asks Nova for their servers so that none is lost or made twice, looks at them, and stops,
// starts or deletes them as the order wants it. It works with any session: the caller's own, or that of a connection.
package ordering

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// Parallel is how many calls there are to OpenStack at once, for one order.
	Parallel = 4
	// Of the time that there is, kept for writing down what happened: a quarter, up to this much.
	longestFinish = 10 * time.Second
	lookAgain     = 1500 * time.Millisecond // between two looks at an order that Nova works on
	// What is known is written down also when the time is up; a database that hangs must not hold the copy.
	endTimeout   = 5 * time.Second
	longestClaim = 15 * time.Second
)

// Cloud is the part of OpenStack that orders need.
type Cloud interface {
	Quota(context.Context) (domain.Quota, error)
	CreateServer(ctx context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string) (string, error)
	StartServer(ctx context.Context, id string) error
	StopServer(ctx context.Context, id string) error
	DeleteServer(ctx context.Context, id string) error
	Server(ctx context.Context, id string) (domain.Server, error)
	Servers(context.Context, domain.ServerQuery) (page []domain.Server, more bool, err error)
}

// Store is the part of the database that orders need.
type Store interface {
	ExtraStore
	Renew(ctx context.Context, order domain.Order, claim domain.Claim, claimFor time.Duration) error
	BeginCall(ctx context.Context, order domain.Order, claim domain.Claim, call domain.CreateCall, claimFor, fence time.Duration) error
	EndCall(ctx context.Context, order domain.Order, call domain.CreateCall) error
	Release(ctx context.Context, order domain.Order, claim domain.Claim) error
	Decide(ctx context.Context, claim domain.Claim, i domain.Instance) error
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error)
	Now(context.Context) (time.Time, error)
}

// Instances is where it is written what is seen of instances.
type Instances interface {
	Change(ctx context.Context, known []domain.Instance) (told int, err error)
	DeleteCounter
}

// Worker works on orders.
type Worker struct {
	Orders    Store
	Instances Instances
	Tell      func()        // wakes who is waiting for news
	Claim     time.Duration // for how long an unanswered create call keeps the next one for its instance back; two thirds may go to the call
	User      string        // who makes the create calls; "" = not known
	// StopsAt reports the errors that end the work on an order at once, because the session may be at fault. nil = none: Work retries.
	StopsAt func(error) bool
}

// Wish is what it takes to ask Nova for an order's servers, besides what is stored of them.
type Wish struct {
	UserData []domain.Secret // of each instance, in their order
	// Prepare is called before servers are asked for, and gives the order as it is to be asked for; nil changes nothing.
	Prepare func(context.Context, domain.Order) (domain.Order, error)
}

// Work does what is to be done of the order, under a claim, until ctx's deadline, which it must have. What it cannot decide is
// left to whoever comes next; the error says why. Without a wish no server is asked for.
func (w Worker) Work(ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, wish *Wish) (err error) {
	deadline, _ := ctx.Deadline()
	finishing := min(longestFinish, time.Until(deadline)/4)
	working, cancel := context.WithDeadline(ctx, deadline.Add(-finishing))
	defer cancel()
	working, stop := w.hold(working, order, claim)
	defer stop()
	if !claim.Fresh {
		order, err = w.resume(working, cloud, order)
	}
	if err == nil && wish != nil && !order.RollingBack() {
		err = w.launch(working, cloud, order, claim, *wish)
	}
	if attended(order) && !errors.Is(err, ErrOpen) && !errors.Is(err, domain.ErrFenced) && !w.stops(err) {
		err = errors.Join(err, w.attend(working, cloud, order, claim))
	}
	if errors.Is(context.Cause(working), domain.ErrFenced) {
		return errors.Join(domain.ErrFenced, err)
	}
	stop() // an unanswered create call is fenced by itself
	end, cancel := ending(ctx)
	defer cancel()
	return errors.Join(err, w.Orders.Release(end, order, claim))
}

func (w Worker) stops(err error) bool { return err != nil && w.StopsAt != nil && w.StopsAt(err) }

// resume observes an order that another replica has begun. Its create calls are read under the claim, so that all are known.
func (w Worker) resume(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	order, err := w.Orders.Get(ctx, order.ProjectID, order.ID)
	if err != nil {
		return order, err
	}
	return w.Observe(ctx, cloud, order)
}

// attended says whether the order is looked at until it is settled. Of one through a connection nobody else hears how it went.
func attended(order domain.Order) bool {
	return order.Spec.Attended() || order.ConnectionID != uuid.Nil
}

// ending is a context for what is to be written down in any case.
func ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
}

// launch asks Nova for every server of the order that is undecided.
func (w Worker) launch(ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, wish Wish) (err error) {
	if order, err = w.awaitCalls(ctx, cloud, order); err != nil || order.RollingBack() {
		return err
	}
	if wish.Prepare != nil {
		if order, err = wish.Prepare(ctx, order); err != nil {
			return err
		}
	}
	if order.Undecided() == 0 {
		return nil
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
			i, err := w.create(working, cloud, order, claim, i, wish.UserData[n])
			if i.Problem != nil {
				refused.Store(true)
			}
			if errors.Is(err, ErrOpen) {
				open.Store(true)
			}
			return err
		})
	}
	err = group.Wait()
	w.Tell()
	if open.Load() {
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

// attend looks at the order's servers, and stops or deletes them as the order wants it, until it is settled or the time is
// up. What goes wrong with one server comes up again at the next look.
func (w Worker) attend(ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim) error {
	order, err := w.Orders.Get(ctx, order.ProjectID, order.ID)
	for ; err == nil || apperr.Retryable(err) && !w.stops(err); time.Sleep(lookAgain) {
		if left := untilEnd(ctx); left < lookAgain {
			return nil
		}
		if err := w.Orders.Renew(ctx, order, claim, ClaimFor(w.Claim)); err != nil {
			return err
		}
		if order, err = w.Observe(ctx, cloud, order); err != nil {
			continue
		}
		if order.Evaluate() != domain.OrderRunning || order.HasReplaced() {
			return nil // that is for Prepare, at the next time
		}
		if more, err := w.step(ctx, cloud, order, claim); err != nil || !more {
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

// step does what is to be done now for each instance. It says whether there is anything to look at again: not when all
// that is left is to ask Nova for servers, nor when Nova lets nobody with this session do it.
func (w Worker) step(ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim) (more bool, err error) {
	var all sync.WaitGroup
	refused := make([]error, len(order.Instances))
	slots := make(chan struct{}, Parallel)
	for n, step := range order.Next() {
		i := order.Instances[n]
		more = more || order.RollingBack() && !i.Decided() || step != domain.StepCreate && (step != domain.StepNone || i.Decided())
		if step == domain.StepNone || step == domain.StepCreate {
			continue
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := w.do(ctx, cloud, order, claim, i, step)
			if err != nil {
				slog.WarnContext(ctx, "order step", "instance_id", i.ID, "step", step, "error", err)
			}
			if code := apperr.CodeOf(err); code == apperr.Unauthenticated || code == apperr.Forbidden {
				refused[n] = err
			}
		})
	}
	all.Wait()
	return more, errors.Join(refused...)
}

func (w Worker) do(ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, i domain.Instance, step domain.Step) error {
	switch step {
	case domain.StepStop:
		return cloud.StopServer(ctx, i.ServerID)
	case domain.StepStart:
		return cloud.StartServer(ctx, i.ServerID)
	case domain.StepDelete:
		return Delete(ctx, cloud, w.Instances, i, order.CreatedAt)
	}
	i.State, i.Problem = domain.InstanceError, domain.Forgone()
	return w.Orders.Decide(ctx, claim, i)
}
