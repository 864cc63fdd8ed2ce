package domain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

const (
	// Nova is asked to delete a server so many times, and left alone after each for as long as this and then twice as
	// long as before. With the pause after the last one that is three minutes.
	maxDeleteTries   = 6
	firstDeletePause = 3 * time.Second
)

// NextDelete says when Nova may be asked to delete the instance's server, by the calls since a moment; exhausted, that
// it was asked often enough, and from when on that is certain to have failed.
func (i Instance) NextDelete(since time.Time) (at time.Time, exhausted bool) {
	if i.DeleteTries == 0 || i.DeleteTriedAt.Before(since) {
		return time.Time{}, false
	}
	tries := min(i.DeleteTries, maxDeleteTries)
	return i.DeleteTriedAt.Add(firstDeletePause << (tries - 1)), tries == maxDeleteTries
}

// RollingBack says whether nothing of the order is to stay: it is all or nothing, and one of its instances could not be
// had or is gone. That follows from the instances alone, so a rollback that has begun is gone on with by whoever comes.
func (o Order) RollingBack() bool {
	switch o.Status {
	case OrderDone, OrderPartial, OrderFailed:
		return false
	}
	return o.Spec.OnFailure == Rollback && slices.ContainsFunc(o.Instances, Instance.lost)
}

// lost says whether the instance cannot be had, or is gone.
func (i Instance) lost() bool {
	return i.State == InstanceError || i.State == InstanceDeleting || i.State == InstanceDeleted
}

// left says whether there is, or may be, a server of the instance.
func (i Instance) left() bool {
	return i.State != InstanceDeleted && !i.isDisconnected() && (i.ServerID != "" || i.Problem == nil)
}

// Left are the instances of which there is, or may be, a server.
func (o Order) Left() (left []Instance) {
	for _, i := range o.Instances {
		if i.left() {
			left = append(left, i)
		}
	}
	return left
}

// undo is what is to be done for an instance of an order that is rolled back.
func (o Order) undo(i Instance) Step {
	switch {
	case !i.Decided():
		return StepForgo
	case i.ServerID == "", i.State == InstanceDeleting, i.State == InstanceDeleted:
		return StepNone
	}
	if at, exhausted := i.NextDelete(o.CreatedAt); exhausted || o.ReadAt.Before(at) {
		return StepNone
	}
	return StepDelete
}

// undeletable says whether Nova could not delete the instance's server, however often it was asked.
func (o Order) undeletable(i Instance) bool {
	at, exhausted := i.NextDelete(o.CreatedAt)
	return exhausted && i.State != InstanceDeleting && !o.ReadAt.Before(at)
}

// LeftProblem says which servers a rollback that ends now leaves, and why; nil when it leaves none, or does not end.
func (o Order) LeftProblem() *Problem {
	if o.Status != OrderRunning || !o.RollingBack() || o.rolledBack() != OrderFailed {
		return nil
	}
	left := o.Left()
	servers := make([]string, len(left))
	for n, i := range left {
		why := "Nova does not say why"
		if i.Problem != nil && !i.Unexplained() {
			why = i.Problem.Detail
		}
		servers[n] = fmt.Sprintf("%s %s (%s)", i.Name, i.ServerID, why)
	}
	return &Problem{Code: "not_rolled_back", Detail: fmt.Sprintf(
		"Nova was asked %d times to delete each of these servers, and they are still there: %s", maxDeleteTries, strings.Join(servers, "; "))}
}

// DeleteCounter is where calls to delete a server are counted.
type DeleteCounter interface {
	DeleteTried(ctx context.Context, i Instance, since time.Time) error
}

// DeleteServer calls Nova to delete the instance's server, and counts that among the calls since a moment, so that Nova
// is not called for ever: see NextDelete. A call that Nova may never have seen does not count.
func (i Instance) DeleteServer(ctx context.Context, cloud interface {
	DeleteServer(ctx context.Context, id string) error
}, counter DeleteCounter, since time.Time,
) error {
	err := cloud.DeleteServer(ctx, i.ServerID)
	if err != nil && !apperr.Final(err) {
		return err
	}
	end, cancel := Detached(ctx)
	defer cancel()
	return errors.Join(err, counter.DeleteTried(end, i, since))
}
