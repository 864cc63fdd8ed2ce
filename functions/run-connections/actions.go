package runconnections

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	parallelActions = 8                // of one connection: each takes Nova two requests
	actionTime      = 30 * time.Second // for one step of an action, which has to end before its claim
	actionPause     = 1500 * time.Millisecond
	retryPause      = 5 * time.Second // the shortest, and the longest, between two tries of what fails
	longestRetry    = 30 * time.Second
	// The pause of an action that was begun while its connection was being suspended.
	suspendedPause = 5 * time.Second

	// An action that Nova has not accepted for so long fails.
	retryFor = time.Hour
)

// act does the next steps of the connection's actions.
func (s *service) act(ctx context.Context, c domain.Connection) error {
	for end := time.Now().Add(orderTime); time.Now().Before(end); {
		claim, taken, err := s.actions.Claim(ctx, c.ProjectID, c.ID, claimFor, parallelActions)
		if err != nil || len(taken) == 0 {
			return err
		}
		var all sync.WaitGroup
		for _, a := range taken {
			all.Go(func() { s.workOnAction(ctx, c, claim, a) })
		}
		all.Wait()
		s.wakeFor(c)
	}
	return nil
}

// workOnAction does the next step of one action, and records the result.
func (s *service) workOnAction(
	ctx context.Context, c domain.Connection, claim domain.Claim, action domain.DelegatedAction,
) {
	doing, cancel := context.WithTimeout(ctx, actionTime)
	defer cancel()
	done, err := s.step(doing, c, &action)
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	if unopened, ok := errors.AsType[delegation.UnopenedError](err); ok {
		s.unopened(ctx, c, unopened.Cause)
		err = s.releaseUnopened(writing, c, claim, action, unopened.Cause)
	} else {
		err = s.recordStep(writing, c, action, claim, done, err)
	}
	if err != nil && !errors.Is(err, domain.ErrFenced) {
		slog.WarnContext(ctx, "action not recorded", "action_id", action.ID, "error", err)
	}
}

// releaseUnopened ends an action whose delegation is lost. Any other is resumed later.
func (s *service) releaseUnopened(
	ctx context.Context, c domain.Connection, claim domain.Claim, action domain.DelegatedAction, cause error,
) error {
	if !delegation.IsLost(cause) {
		return s.actions.Release(ctx, action, claim, retryPause)
	}
	status, _, err := s.delegations.Status(ctx, c.ProjectID, c.ID)
	if err == nil && status.IsOpen() { // it has been given another trust or secret since
		return s.actions.Release(ctx, action, claim, retryPause)
	}
	c.Status, c.Reason = domain.ConnectionLost, domain.LostReason(c.Kind)
	return s.endAction(ctx, c, action, claim, endedBy(c))
}

// recordStep ends the action, or releases it until its next step.
func (s *service) recordStep(
	ctx context.Context, c domain.Connection, action domain.DelegatedAction, claim domain.Claim,
	done bool, failed error,
) error {
	switch {
	case done && failed == nil:
		return s.endAction(ctx, c, action, claim, nil)
	case failed == nil:
		return s.actions.Release(ctx, action, claim, actionPause)
	case apperr.CodeOf(failed) == apperr.Suspended: // while it was being done
		return s.actions.Release(ctx, action, claim, suspendedPause)
	}
	if paused, ok := errors.AsType[actions.PauseError](failed); ok {
		return s.actions.Release(ctx, action, claim, paused.Pause)
	}
	slog.WarnContext(ctx, "step of action failed", "action_id", action.ID, "action", action.Request.Action,
		"instance_id", action.InstanceID, "error", failed)
	isOver := apperr.Final(failed) && !errors.Is(failed, actions.ErrCellDown) ||
		apperr.CodeOf(failed) == apperr.DelegationLost
	if now, err := s.db.Now(ctx); err == nil && now.Sub(c.WaitingSince(action.CreatedAt)) > retryFor {
		isOver = true
	}
	if isOver {
		return s.endAction(ctx, c, action, claim, domain.ProblemOf(failed))
	}
	return s.actions.Release(ctx, action, claim, s.pauseFor(ctx, action.CreatedAt))
}

// endAction ends an action. The lease of its instance continues.
func (s *service) endAction(
	ctx context.Context, c domain.Connection, action domain.DelegatedAction, claim domain.Claim,
	problem *domain.Problem,
) error {
	err := s.actions.End(ctx, action, claim, problem)
	if err == nil && (c.LeaseID != uuid.Nil || action.LeaseID != uuid.Nil) {
		s.wake("run-leases")
	}
	return err
}

// step does the action's next step. done reports that it was the last one.
func (s *service) step(
	ctx context.Context, c domain.Connection, action *domain.DelegatedAction,
) (done bool, err error) {
	now, err := s.db.Now(ctx) // before Nova is called
	if err != nil {
		return false, err
	}
	// Read again: it may have ended since it was listed, and a token of a credential goes on working.
	if c.Status, c.Reason, err = s.delegations.Status(ctx, c.ProjectID, c.ID); err != nil {
		return false, err
	}
	if c.Status == domain.ConnectionSuspended {
		return false, actions.PauseError{Pause: suspendedPause}
	}
	if permission, ok := domain.PermissionFor(action.Request.Action); ok {
		if err := c.Permits(now, permission); err != nil {
			return false, err
		}
	}
	err = s.cloud.Use(ctx, c, func(cloud session) (err error) {
		switch {
		case action.Request.Action == domain.Connect:
			err = s.connect(ctx, cloud, c, *action, now)
			done = err == nil
		case action.Arguments.Volume != nil:
			done, err = s.doVolume(ctx, cloud, c, action)
		default:
			done, err = s.do(ctx, cloud, c, action, now)
		}
		return err
	})
	if err == nil && !done && now.Sub(c.WaitingSince(action.CreatedAt)) > retryFor {
		err = errNoEnd
	}
	return done, err
}

// do has the engine do the next step to the action's instance.
func (s *service) do(
	ctx context.Context, cloud session, c domain.Connection, stored *domain.DelegatedAction, now time.Time,
) (done bool, err error) {
	filter := domain.Filter{ProjectID: c.ProjectID, ConnectionID: c.ID}
	if c.LeaseID != uuid.Nil { // any instance of the project may be leased
		filter.ConnectionID = uuid.Nil
	}
	found, err := s.instances.Find(ctx, filter, []string{stored.InstanceID.String()})
	if err != nil {
		return false, err
	}
	i := found[0]
	stored.LeaseID = i.LeaseID
	switch {
	case i.ID == uuid.Nil, c.LeaseID != uuid.Nil && i.LeaseID != c.LeaseID:
		return false, apperr.New(apperr.NotFound, "there is no instance %s", stored.InstanceID)
	case i.ServerID == "" && i.Decided():
		return false, apperr.New(apperr.Conflict, "the instance has no server: Nova refused it")
	}
	action := actions.Action{
		ActionRequest: stored.Request, ID: stored.ID, Actor: stored.Actor, ServerID: i.ServerID, Instance: i,
		Force: true, Limits: c.Limits, Arguments: stored.Arguments, Lease: c.LeaseID,
		Follow: &actions.Follow{
			RequestedAt: stored.CreatedAt, Now: now, Waiting: now.Sub(c.WaitingSince(stored.CreatedAt)),
		},
	}
	if stored.Request.Action == domain.Deploy {
		if action.Deployment, err = s.deployment(*stored); err != nil {
			return false, err
		}
	}
	progress, err := actions.Engine{Instances: s.instances}.Step(ctx, cloud, action)
	stored.ImageID = progress.ImageID
	return progress.Done, err
}

// doVolume does the next step for a volume of a lease. Its instance may have been deleted, or be in the next lease.
func (s *service) doVolume(
	ctx context.Context, cloud session, c domain.Connection, stored *domain.DelegatedAction,
) (done bool, err error) {
	found, err := s.instances.Find(ctx, domain.Filter{ProjectID: c.ProjectID}, []string{stored.InstanceID.String()})
	if err != nil {
		return false, err
	}
	volume := actions.Volume{
		VolumeTask: *stored.Arguments.Volume, ProjectID: c.ActsAs.ProjectID, ServerID: found[0].ServerID,
	}
	volume.ID = cmp.Or(stored.Outcome.VolumeID, volume.ID)
	volume.IsUsed = volume.IsUsed || stored.Outcome.IsUsed
	step := volume.Detach
	if stored.Request.Action == domain.AttachVolume {
		step = volume.Attach
	}
	outcome, done, err := step(ctx, cloud)
	stored.Outcome = stored.Outcome.Merge(outcome)
	return done, err
}

// deployment decrypts the action's deployment.
func (s *service) deployment(stored domain.DelegatedAction) (actions.Deployment, error) {
	var d domain.DelegatedDeploy
	if err := s.unseal(stored.SealedFor(), stored.Payload, &d); err != nil {
		return actions.Deployment{}, err
	}
	prepare := func(context.Context) (domain.RebuildRequest, error) {
		return domain.RebuildRequest{ID: d.ID, UserData: domain.Secret(d.UserData)}, nil
	}
	return actions.Deployment{ID: d.ID, ImageID: d.ImageID, NotAfter: d.NotAfter, Prepare: prepare}, nil
}

// connect takes an existing server of the connection's project under management.
func (s *service) connect(
	ctx context.Context, cloud session, c domain.Connection, action domain.DelegatedAction, now time.Time,
) error {
	wanted := domain.Instance{
		ID: action.InstanceID, ProjectID: c.ProjectID, ConnectionID: c.ID, Remote: c.Remote(), SeenAt: now,
	}
	actor := action.Actor.Doing(domain.Connect, action.ID)
	_, _, err := actions.Engine{Instances: s.instances}.Connect(ctx, cloud, action.ServerID, c.ActsAs.ProjectID, wanted,
		actor)
	return err
}

// errNoEnd ends an action that Nova accepts repeatedly and never finishes.
var errNoEnd = apperr.New(apperr.Conflict, "Nova has not finished the action within %s", retryFor)

// abandonActions ends the actions of a connection that has ended.
func (s *service) abandonActions(ctx context.Context, c domain.Connection, why *domain.Problem) error {
	for {
		claim, taken, err := s.actions.Claim(ctx, c.ProjectID, c.ID, claimFor, listed)
		if err != nil || len(taken) == 0 {
			return err
		}
		for _, a := range taken {
			if err := s.actions.End(ctx, a, claim, why); err != nil {
				return err
			}
		}
		s.wakeOfEnd(c)
	}
}

// wakeOfEnd wakes the functions that have work when a connection has ended.
func (s *service) wakeOfEnd(c domain.Connection) {
	s.wake("deliver-events")
	if c.LeaseID != uuid.Nil {
		s.wake("run-leases")
	}
}
