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
	// Nova gets so many calls to delete a server. The pause after each is twice the one before; together they take
	// three minutes.
	maxDeleteTries   = 6
	firstDeletePause = 3 * time.Second
)

// NextDelete returns when the next call to delete the instance's server may be made, given the calls since a moment.
// exhausted says that no calls are left, and that the deletion has failed after that time.
func (i Instance) NextDelete(since time.Time) (at time.Time, exhausted bool) {
	if i.DeleteTries == 0 || i.DeleteTriedAt.Before(since) {
		return time.Time{}, false
	}
	tries := min(i.DeleteTries, maxDeleteTries)
	return i.DeleteTriedAt.Add(firstDeletePause << (tries - 1)), tries == maxDeleteTries
}

// RollingBack reports whether the order is being rolled back: it is all or nothing, and one of its instances failed or
// is gone. It depends on the instances only, so any replica can resume a rollback.
func (o Order) RollingBack() bool {
	switch o.Status {
	case OrderDone, OrderPartial, OrderFailed:
		return false
	}
	return o.Spec.OnFailure == Rollback && slices.ContainsFunc(o.Instances, Instance.lost)
}

// lost reports whether the instance failed or is gone.
func (i Instance) lost() bool {
	return i.State == InstanceError || i.State == InstanceDeleting || i.State == InstanceDeleted
}

// left reports whether the instance may still have a server.
func (i Instance) left() bool {
	return i.State != InstanceDeleted && !i.isDisconnected() && (i.ServerID != "" || i.Problem == nil)
}

// Left lists the instances that may still have servers.
func (o Order) Left() (left []Instance) {
	for _, i := range o.Instances {
		if i.left() {
			left = append(left, i)
		}
	}
	return left
}

// undo returns the next step for an instance of an order that is rolled back.
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

// undeletable reports whether all calls to delete the instance's server have failed.
func (o Order) undeletable(i Instance) bool {
	at, exhausted := i.NextDelete(o.CreatedAt)
	return exhausted && i.State != InstanceDeleting && !o.ReadAt.Before(at)
}

// LeftProblem lists the servers that a failed rollback leaves, and why; nil if it has not failed.
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
	const format = "these servers still exist after %d calls to delete each: %s"
	return &Problem{Code: "not_rolled_back", Detail: fmt.Sprintf(format, maxDeleteTries, strings.Join(servers, "; "))}
}

// DeleteCounter counts calls to delete a server.
type DeleteCounter interface {
	RecordDeleteAttempt(ctx context.Context, i Instance, since time.Time) error
}

// DeleteServer calls Nova to delete the instance's server, and counts the call since a moment for NextDelete. A call
// that Nova may not have received does not count.
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
	return errors.Join(err, counter.RecordDeleteAttempt(end, i, since))
}
