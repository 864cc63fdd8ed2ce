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
	s, of := volumeStep{step{p, r}}, p.lease.InstanceOf(*r)
	switch {
	case todo == workFinish && (p.lease.OnEnd == domain.OnEndNone || !s.isBegun()):
		r.Status, r.ActionID = domain.ReservationEnded, uuid.Nil
		return nil
	case todo == workFinish && of.Status != domain.ReservationEnded:
		p.isMoving = true
		return nil
	case todo == workFinish && p.lost != nil:
		return apperr.New(apperr.DelegationLost, "%s", p.lost.Detail)
	case todo == workFinish:
		return s.ensure(ctx, domain.DetachVolume, domain.ReservationEnded)
	case todo != workStart || r.Status == domain.ReservationActive:
		return nil
	case of.Status == domain.ReservationActive:
		return s.ensure(ctx, domain.AttachVolume, domain.ReservationActive)
	case of.Status != domain.ReservationEnded:
		p.isMoving = true
		return nil
	case !s.isBegun(): // the instance was deleted
		r.Status = domain.ReservationEnded
		return nil
	}
	return s.ensure(ctx, domain.DetachVolume, domain.ReservationEnded)
}

// volumeStep is the next step for one volume.
type volumeStep struct{ step }

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
		s.learn(*current)
	}
	switch {
	case current != nil && current.Status == domain.ActionRunning && !isOwn:
		return s.abandon(ctx, *current)
	case current != nil && current.Status == domain.ActionRunning:
		s.isMoving = true
		s.waits(current.CreatedAt, "the action %s of the reservation %s is under way", action, s.r.ID)
		return nil
	case isOwn && current.Status == domain.ActionFailed:
		return failed(current.Problem)
	case isOwn:
		s.r.Status = then
		return nil
	}
	v := *s.r.Volume
	if s.neverStarted() && !v.IsNew { // its user ended the lease while it was starting
		v.OnEnd = domain.VolumeEndKeep
	}
	return s.request(ctx, s.lease.InstanceOf(*s.r).InstanceID, action, domain.ActionArguments{
		Volume: &domain.VolumeTask{LeasedVolume: v, Reservation: s.r.ID, IsUsed: !s.r.PreparedAt.IsZero()},
	})
}

// learn stores what an action that has ended has made.
func (s volumeStep) learn(ended domain.DelegatedAction) {
	v := *s.r.Volume
	v.ID, v.SnapshotID = cmp.Or(ended.Outcome.VolumeID, v.ID), cmp.Or(ended.Outcome.SnapshotID, v.SnapshotID)
	s.r.Volume = &v
	if ended.Outcome.IsUsed && s.r.PreparedAt.IsZero() {
		s.r.PreparedAt = s.now
	}
	s.forgetAction()
}
