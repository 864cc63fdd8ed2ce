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
	endTimeout = 5 * time.Second
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
	Renew(ctx context.Context, order domain.Order, claim domain.Claim, claimFor time.Duration) error
	Release(ctx context.Context, order domain.Order, claim domain.Claim) error
	Decide(ctx context.Context, claim domain.Claim, i domain.Instance) error
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error)
	Now(context.Context) (time.Time, error)
}

// Instances is where it is written what is seen of instances.
type Instances interface {
	Change(ctx context.Context, known []domain.Instance) (told int, err error)
}

// Worker works on orders.
type Worker struct {
	Orders    Store
	Instances Instances
	Tell      func()        // wakes who is waiting for news
	Claim     time.Duration // for how long a copy that may have died keeps an order to itself; two thirds may go to one create call
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
	if !claim.Fresh {
		order, err = w.Observe(working, cloud, order) // somebody has begun it
	}
	if err == nil && wish != nil && !order.RollingBack() {
		err = w.launch(working, cloud, order, claim, *wish)
	}
	if attended(order) && !errors.Is(err, ErrOpen) && !errors.Is(err, domain.ErrFenced) {
		err = errors.Join(err, w.attend(working, cloud, order, claim))
	}
	if errors.Is(err, ErrOpen) {
		return err // the claim runs on: nobody asks again before Nova has surely finished
	}
	end, cancel := ending(ctx)
	defer cancel()
	return errors.Join(err, w.Orders.Release(end, order, claim))
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

// ErrOpen says that Nova may or may not have made the server.
var ErrOpen = errors.New("it is open whether nova made the server")

// create asks Nova for one server and writes down what it says, if it says anything final.
func (w Worker) create(
	ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, i domain.Instance, userData domain.Secret,
) (domain.Instance, error) {
	if err := ctx.Err(); err != nil {
		return i, err // another one failed, or the time is up: nothing was sent for this one
	}
	if err := w.Orders.Renew(ctx, order, claim, w.Claim); err != nil {
		return i, err
	}
	// Not canceled when another create fails: Nova would go on, and nobody would hear its answer.
	limit := w.Claim * 2 / 3
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)+longestFinish/2)
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	id, err := cloud.CreateServer(asking, i.Spec, i.Name, userData, tags(order, i))
	switch {
	case err == nil:
		i.ServerID, i.State, i.RawStatus = id, domain.InstanceBuilding, "BUILD"
	case Final(err):
		i.State, i.Problem = domain.InstanceError, &domain.Problem{Code: string(apperr.CodeOf(err)), Detail: apperr.As(err).Message}
	case sentNothing(err):
		return i, err
	default:
		slog.WarnContext(ctx, "open create", "instance_id", i.ID, "error", err)
		return i, errors.Join(ErrOpen, err)
	}
	end, cancel := ending(ctx)
	defer cancel()
	return i, w.Orders.Decide(end, claim, i)
}

// tags are how a server is found again: by its instance, and all of an order at once.
func tags(order domain.Order, i domain.Instance) []string {
	return []string{i.ID.String(), domain.OrderTag(order.ID)}
}

// Final says whether OpenStack refused for good: the same call would be refused again.
func Final(err error) bool {
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
func (w Worker) attend(ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim) error {
	order, err := w.Orders.Get(ctx, order.ProjectID, order.ID)
	for ; err == nil || apperr.Retryable(err); time.Sleep(lookAgain) {
		if left := untilEnd(ctx); left < lookAgain {
			return nil
		}
		if err := w.Orders.Renew(ctx, order, claim, w.Claim); err != nil {
			return err
		}
		if order, err = w.Observe(ctx, cloud, order); err != nil {
			continue
		}
		if order.Evaluate() != domain.OrderRunning {
			return nil
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
		more = more || step != domain.StepCreate && (step != domain.StepNone || i.Decided())
		if step == domain.StepNone || step == domain.StepCreate {
			continue
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := w.do(ctx, cloud, claim, i, step)
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

func (w Worker) do(ctx context.Context, cloud Cloud, claim domain.Claim, i domain.Instance, step domain.Step) error {
	switch step {
	case domain.StepStop:
		return cloud.StopServer(ctx, i.ServerID)
	case domain.StepStart:
		return cloud.StartServer(ctx, i.ServerID)
	case domain.StepDelete:
		return cloud.DeleteServer(ctx, i.ServerID)
	}
	i.State, i.Problem = domain.InstanceError, domain.Forgone()
	return w.Orders.Decide(ctx, claim, i)
}
