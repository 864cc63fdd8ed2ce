package leases

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// waitsForLease leaves the instance to the earlier lease that it is in. A start waits for its end.
func waitsForLease(todo work, r *domain.Reservation) error {
	switch todo {
	case workFinish:
		r.Status = domain.ReservationEnded
	case workStart:
		return apperr.Wrap(apperr.Conflict, errWaits, "the instance is in lease %s until that has ended",
			r.WaitsFor)
	}
	return nil
}

// prepare shelves the instance. That it ran before is stored first, so that a cancelled lease can start it again: while
// Nova or an order is at work on it, that is not known yet, and its next state makes the lease due. One that its owner
// starts meanwhile is drift.
func (s instanceStep) prepare(ctx context.Context) error {
	isBack := !s.r.PreparedAt.IsZero() && s.r.ActionID == uuid.Nil && s.i.State == domain.InstanceActive
	if isBack && !s.lease.Enforce {
		detail := fmt.Sprintf("the instance %s runs, although its lease begins at %s", s.i.ID,
			s.lease.StartsAt.UTC().Format(time.RFC3339))
		s.reason = &domain.Problem{Code: domain.DriftCode, Detail: detail}
		return nil
	}
	if s.isAtWork() && s.r.PreparedAt.IsZero() && s.r.ActionID == uuid.Nil {
		s.waitsFor = earlier(s.waitsFor, s.now.Add(healEvery))
		s.waitsForNova()
		return nil
	}
	if s.i.State == domain.InstanceActive && !s.r.WasRunning {
		s.r.WasRunning = true
		if err := s.Store.SaveStep(ctx, s.claim, s.lease, s.ClaimFor); err != nil {
			return err
		}
	}
	isDone, err := s.bring(ctx, domain.Shelve)
	if isDone && s.r.PreparedAt.IsZero() {
		s.r.PreparedAt = s.now
	}
	return err
}

// leavesInstance reports whether the lease ends without what on_end says: its user said so, or has cancelled it.
func (s instanceStep) leavesInstance() bool {
	ended := s.lease.EndingSince // not now: what has to be done does not depend on the time of the pass
	if ended.IsZero() {
		ended = s.now
	}
	return s.lease.OnEnd == domain.OnEndNone || s.neverStarted() && ended.Before(s.lease.StartsAt)
}

// isToRestore reports whether the lease was cancelled after it had shelved an instance that ran.
func (s instanceStep) isToRestore() bool { return s.neverStarted() && s.r.WasRunning }

// withoutDelegation ends the reservation if its instance is where it has to be. Nothing else can be done.
func (s instanceStep) withoutDelegation() error {
	if s.leavesInstance() && (!s.isToRestore() || s.isIn(domain.Start, false)) {
		s.r.Status, s.r.ActionID = domain.ReservationEnded, uuid.Nil
		return nil
	}
	for onEnd, action := range map[domain.OnEnd]domain.Action{
		domain.OnEndShelve: domain.Shelve, domain.OnEndStop: domain.Stop,
	} {
		if s.lease.OnEnd == onEnd && s.isIn(action, true) {
			s.r.Status, s.r.ActionID = domain.ReservationEnded, uuid.Nil
			return nil
		}
	}
	return apperr.New(apperr.DelegationLost, "%s", s.lost.Detail)
}
