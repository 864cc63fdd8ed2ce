package leases

import (
	"cmp"
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// volume does the next step for the volume of a reservation: it is attached when its instance has started, and
// detached when the lease has done to the instance what its on_end says.
func (p *pass) volume(ctx context.Context, todo work, r *domain.Reservation) error {
	s, instance := volumeStep{step{p, r}}, p.lease.InstanceOf(*r)
	switch {
	case todo == workFinish:
		return s.finish(ctx, instance)
	case todo != workStart || r.Status == domain.ReservationActive:
		return nil
	case r.WaitsFor != uuid.Nil:
		return waitsForLease(todo, r, "volume")
	case instance.Status == domain.ReservationActive:
		return s.ensure(ctx, domain.AttachVolume, domain.ReservationActive)
	case instance.Status != domain.ReservationEnded:
		s.waitFor(instance)
		return nil
	case !s.isBegun(): // the instance was deleted
		r.Status = domain.ReservationEnded
		return nil
	}
	return s.ensure(ctx, domain.DetachVolume, domain.ReservationEnded)
}

// volumeStep is the next step for one volume.
type volumeStep struct{ step }

// finish detaches the volume once the end of its instance is done. One that is still being attached keeps that not
// waiting: run-connections does one action of an instance after the other.
func (s volumeStep) finish(ctx context.Context, instance *domain.Reservation) error {
	current, err := s.current(ctx)
	isAttaching := current != nil && current.Request.Action == domain.AttachVolume
	switch {
	case err != nil:
		return err
	case isAttaching && current.Status == domain.ActionRunning:
		return s.abandon(ctx, *current)
	case isAttaching:
		s.recordOutcome(*current)
	}
	switch {
	case s.lease.OnEnd == domain.OnEndNone, !s.isBegun():
		s.r.Status, s.r.ActionID = domain.ReservationEnded, uuid.Nil
		return nil
	case s.lost != nil:
		return apperr.New(apperr.DelegationLost, "%s", s.lost.Detail)
	case instance.Status != domain.ReservationEnded:
		s.waitFor(instance)
		return nil
	}
	return s.ensure(ctx, domain.DetachVolume, domain.ReservationEnded)
}

// waitFor has the lease continue soon, unless the step for the instance has failed: then its pause counts.
func (s volumeStep) waitFor(instance *domain.Reservation) {
	s.isMoving = s.isMoving || instance.Problem == nil
}

// isBegun reports whether run-connections may have done something with the volume.
func (s volumeStep) isBegun() bool {
	return s.r.ActionID != uuid.Nil || s.r.ActionsDone > 0 || !s.r.PreparedAt.IsZero()
}

// ensure has run-connections do the action to its end. The reservation has the status then.
func (s volumeStep) ensure(ctx context.Context, action domain.Action, then domain.ReservationStatus) error {
	current, err := s.current(ctx)
	if err != nil {
		return err
	}
	isOwn := current != nil && current.Request.Action == action
	if current != nil && current.Status != domain.ActionRunning {
		s.recordOutcome(*current)
	}
	switch {
	case current != nil && current.Status == domain.ActionRunning && !isOwn:
		return s.abandon(ctx, *current)
	case current != nil && current.Status == domain.ActionRunning:
		s.isMoving = true
		s.waits(current.CreatedAt, "the action %s of the reservation %s is under way", action, s.r.ID)
		return nil
	case isOwn && current.Status == domain.ActionFailed && !isOfLost(current.Problem):
		return failed(current.Problem)
	case isOwn && current.Status == domain.ActionDone:
		s.r.Status = then
		return nil
	}
	v := *s.r.Volume
	if s.neverStarted() && !v.IsNew { // its user ended the lease while it was starting
		v.OnEnd = domain.VolumeEndKeep
	}
	return s.requestFirst(ctx, action, domain.VolumeTask{
		LeasedVolume: v, Reservation: s.r.ID, IsUsed: !s.r.PreparedAt.IsZero(),
	})
}

// isOfLost reports whether an action has failed because its delegation had ended: the lease has another one since.
func isOfLost(problem *domain.Problem) bool {
	return problem != nil && problem.Code == string(apperr.DelegationLost)
}

// requestFirst stores that the action may be requested, and requests it: whatever becomes of this process and of the
// answer, the end of the lease looks for what the action has made.
func (s volumeStep) requestFirst(ctx context.Context, action domain.Action, task domain.VolumeTask) error {
	id := s.actionID(action)
	s.r.ActionID = id
	if err := s.Store.SaveStep(ctx, s.claim, s.lease, s.ClaimFor); err != nil {
		return err
	}
	err := s.request(ctx, id, s.lease.InstanceOf(*s.r).InstanceID, action, domain.ActionArguments{Volume: &task})
	s.r.ActionID = id
	return err
}

// recordOutcome stores what an action that has ended has made.
func (s volumeStep) recordOutcome(ended domain.DelegatedAction) {
	v := *s.r.Volume
	v.ID, v.SnapshotID = cmp.Or(ended.Outcome.VolumeID, v.ID), cmp.Or(ended.Outcome.SnapshotID, v.SnapshotID)
	s.r.Volume = &v
	if ended.Outcome.IsUsed && s.r.PreparedAt.IsZero() {
		s.r.PreparedAt = s.now
	}
	s.forgetAction()
}
