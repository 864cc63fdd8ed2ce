package leases

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// instance does the next step for the instance of a reservation.
func (p *pass) instance(ctx context.Context, todo work, r *domain.Reservation) error {
	i, err := p.find(ctx, r)
	if err != nil {
		return err
	}
	if isGone(i) {
		r.Status, r.ActionID = domain.ReservationEnded, uuid.Nil
		return nil
	}
	if todo == workMaintain {
		return nil
	}
	if r.WaitsFor != uuid.Nil {
		return waitsForLease(todo, r, "instance")
	}
	step := instanceStep{step{p, r}, i}
	if p.lost != nil {
		return step.withoutDelegation()
	}
	var isDone bool
	switch todo {
	case workPrepare:
		return step.prepare(ctx)
	case workStart:
		if isDone, err = step.start(ctx); isDone {
			r.Status = domain.ReservationActive
		}
	default:
		if isDone, err = step.finish(ctx); isDone {
			r.Status = domain.ReservationEnded
		}
	}
	return err
}

func (p *pass) find(ctx context.Context, r *domain.Reservation) (domain.Instance, error) {
	found, err := p.Instances.Find(ctx, domain.Filter{ProjectID: p.lease.ProjectID}, []string{r.InstanceID.String()})
	if err != nil {
		return domain.Instance{}, err
	}
	return found[0], nil
}

// isGone reports whether there is no server, and there never will be.
func isGone(i domain.Instance) bool {
	return i.ID == uuid.Nil || i.State == domain.InstanceDeleted || i.ServerID == "" && i.Decided()
}

// instanceStep is the next step for one instance.
type instanceStep struct {
	step

	i domain.Instance
}

// start has the instance run. A paused or suspended one does, for Nova: only its user may resume it.
func (s instanceStep) start(ctx context.Context) (isDone bool, err error) {
	if s.i.State == domain.InstancePaused || s.i.State == domain.InstanceSuspended {
		return true, nil
	}
	return s.ensureState(ctx, domain.Start)
}

// finish does what on_end says. isDone reports that nothing is left to do.
func (s instanceStep) finish(ctx context.Context) (isDone bool, err error) {
	onEnd := s.lease.OnEnd
	switch {
	case s.leavesInstance() && s.isToRestore():
		return s.start(ctx)
	case s.leavesInstance():
		s.r.ActionID = uuid.Nil
		return true, nil
	case s.neverStarted(): // it was starting when its user ended it
		onEnd = domain.OnEndShelve
	}
	switch onEnd {
	case domain.OnEndStop:
		return s.ensureState(ctx, domain.Stop)
	case domain.OnEndDelete:
		return s.ensureState(ctx, domain.Delete)
	case domain.OnEndSnapshotDelete:
		return s.snapshotDelete(ctx)
	}
	return s.ensureState(ctx, domain.Shelve)
}

// snapshotDelete deletes the server when its image is active. If this process dies in between, the image is found.
func (s instanceStep) snapshotDelete(ctx context.Context) (bool, error) {
	if s.i.State == domain.InstanceDeleting {
		return s.ensureState(ctx, domain.Delete)
	}
	current, err := s.current(ctx)
	if err != nil {
		return false, err
	}
	if current != nil && current.Request.Action == domain.Delete && current.Status != domain.ActionFailed {
		return s.ensureState(ctx, domain.Delete)
	}
	isDone, err := s.ensureState(ctx, domain.Snapshot)
	if err != nil || !isDone {
		return false, err
	}
	s.r.ActionID = uuid.Nil
	return s.ensureState(ctx, domain.Delete)
}

// waitsForNova is waits for the end of what Nova does to the instance.
func (s instanceStep) waitsForNova() {
	status := s.i.RawStatus
	if s.i.State == domain.InstanceUnknown || status == "" {
		status = string(s.i.State)
	}
	s.waits(s.i.UpdatedAt, "the lease waits for the instance %s, which is %s", s.i.ID, status)
}

// ensureState has the action done, until the instance is in the state that the action leads to.
func (s instanceStep) ensureState(ctx context.Context, action domain.Action) (isDone bool, err error) {
	if s.lease.ConnectionID == uuid.Nil {
		return s.ensureDirectly(ctx, action)
	}
	current, err := s.current(ctx)
	if err != nil {
		return false, err
	}
	isOwn := current != nil && current.Request.Action == action
	switch {
	case current != nil && current.Status == domain.ActionRunning && !isOwn && s.lease.Status == domain.LeaseEnding &&
		current.Request.Action == domain.Start:
		return false, s.abandon(ctx, *current)
	case current != nil && current.Status == domain.ActionRunning:
		s.isMoving = true
		s.waits(current.CreatedAt, "the action %s of the instance %s is under way", current.Request.Action, s.i.ID)
		return false, nil
	case isOwn && current.Status == domain.ActionFailed:
		s.forgetAction()
		return false, failed(current.Problem)
	case action == domain.Snapshot && isOwn, s.isIn(action, isOwn):
		s.forgetAction()
		return true, nil
	case s.isAtWork() && (isOwn || action == domain.Start): // such as a launch
		s.isMoving = true
		s.waitsForNova()
		return false, nil
	case isOwn:
		s.forgetAction()
		return false, s.stateNotReached(action)
	}
	return false, s.request(ctx, s.actionID(action), s.i.ID, action, domain.ActionArguments{})
}

// isIn reports whether the instance is where the action leads to. A server that is shelved may still be on its host:
// wasDone reports that the action has done what can be done about that.
func (s instanceStep) isIn(action domain.Action, wasDone bool) bool {
	switch action {
	case domain.Start:
		return s.i.State == domain.InstanceActive
	case domain.Stop: // Nova stops none that is paused or suspended: it does not run either
		return slices.Contains([]domain.InstanceState{
			domain.InstanceStopped, domain.InstanceShelved, domain.InstancePaused, domain.InstanceSuspended,
		}, s.i.State)
	case domain.Shelve:
		return s.i.State == domain.InstanceShelved && (wasDone || s.i.RawStatus == "SHELVED_OFFLOADED")
	}
	return false // the instance of a deleted one is not found
}

// isAtWork reports whether Nova is changing the instance, or it is not known what it does.
func (s instanceStep) isAtWork() bool {
	return s.i.State == domain.InstanceUnknown || slices.Contains(domain.MovingStates(), s.i.State)
}

// stateNotReached says why an instance is not where the action leads to, although Nova has accepted it.
func (s instanceStep) stateNotReached(action domain.Action) error {
	detail := ""
	if s.i.Problem != nil {
		detail = ": " + s.i.Problem.Detail
	}
	if action == domain.Start && s.i.State == domain.InstanceShelved {
		detail = ": Nova has found no host with room for it"
	}
	return apperr.New(apperr.Conflict, "the instance %s is %s after the action %s%s", s.i.ID, s.i.State, action, detail)
}

// ensureDirectly does the action with the service account.
func (s instanceStep) ensureDirectly(ctx context.Context, action domain.Action) (isDone bool, err error) {
	accepted := uuid.NewSHA1(s.r.ID, []byte("accepted/"+string(action)+"/"+string(s.lease.Status)))
	switch {
	case s.i.ServerID == "":
		s.isMoving = true
		return false, nil
	case s.isIn(action, false):
		s.r.ActionID = uuid.Nil
		return true, nil
	case s.r.ActionID == accepted && s.isAtWork():
		s.isMoving = true
		s.waitsForNova()
		return false, nil
	case s.r.ActionID == accepted:
		s.r.ActionID = uuid.Nil
		return false, s.stateNotReached(action)
	}
	cloud, err := s.session(ctx)
	if err != nil {
		return false, err
	}
	progress, err := actions.Engine{Instances: s.Instances}.Step(ctx, cloud, actions.Action{
		ActionRequest: domain.ActionRequest{Action: action}, Actor: s.lease.Actor, ServerID: s.i.ServerID,
		Instance: s.i, ProjectID: s.lease.ProjectID, Force: true, Lease: s.lease.ID,
		Follow: &actions.Follow{RequestedAt: earlier(s.now, s.lease.EndsAt), Now: s.now},
	})
	if err != nil {
		return false, err
	}
	if progress.Blocked != nil { // its user's own work, such as a rebuild
		s.reason = domain.ProblemOf(progress.Blocked)
	} else if progress.Waits != nil {
		s.reason = domain.ProblemOf(progress.Waits)
	}
	s.isMoving = true
	if progress.Done && (action == domain.Start || action == domain.Stop) {
		s.r.ActionID = accepted
	} else if progress.Done && action != domain.Delete {
		s.isMoving = false
		return true, nil
	}
	return false, nil
}

// waitsForLease leaves an instance or a volume to the earlier lease that it is in. A start waits for its end.
func waitsForLease(todo work, r *domain.Reservation, what string) error {
	switch todo {
	case workFinish:
		r.Status = domain.ReservationEnded
	case workStart:
		return apperr.Wrap(apperr.Conflict, errWaits, "the %s is in lease %s until that has ended", what,
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
	isDone, err := s.ensureState(ctx, domain.Shelve)
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
