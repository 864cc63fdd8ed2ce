package runconnections

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/ordering"
)

// actionStore is where actions wait.
type actionStore interface {
	Claim(ctx context.Context, projectID string, connection uuid.UUID, claimFor time.Duration, limit int) (claim uuid.UUID, taken []domain.DelegatedAction, err error)
	Release(ctx context.Context, taken domain.DelegatedAction, claim uuid.UUID, pause time.Duration) error
	End(ctx context.Context, taken domain.DelegatedAction, claim uuid.UUID, problem *domain.Problem) error
}

const (
	actionsAtOnce = 8                // of one connection: each takes Nova two requests
	actionTime    = 30 * time.Second // for one look at an action, which has to end before its claim
	actionPause   = 1500 * time.Millisecond
	retryPause    = 5 * time.Second // the shortest, and the longest, between two tries of what fails
	longestRetry  = 30 * time.Second
	// An action that was begun while its connection was being suspended is left alone for so long.
	suspendedPause = 5 * time.Second

	// An action waits for so long for a server that Nova is at work on; a deployment has more of that to wait for.
	actionPatience = 10 * time.Minute
	deployPatience = 30 * time.Minute
	// What Nova could not be told for so long is not wanted any more.
	retryFor = time.Hour
	// Ports go with their server, some seconds later. What is left of them after this time is not Nova's.
	portsPatience = 3 * time.Minute
)

// act does what can be done now of the connection's actions.
func (s *service) act(ctx context.Context, c domain.Connection) {
	for end := time.Now().Add(orderTime); time.Now().Before(end); {
		claim, taken, err := s.actions.Claim(ctx, c.ProjectID, c.ID, claimFor, actionsAtOnce)
		if err != nil {
			slog.WarnContext(ctx, "actions of a connection", "connection_id", c.ID, "error", err)
		}
		if len(taken) == 0 {
			return
		}
		var all sync.WaitGroup
		for _, a := range taken {
			all.Go(func() { s.actOn(ctx, c, claim, a) })
		}
		all.Wait()
		s.wakeFor(c)
	}
}

// actOn looks at one action, does what is next, and writes down what came of it.
func (s *service) actOn(ctx context.Context, c domain.Connection, claim uuid.UUID, action domain.DelegatedAction) {
	doing, cancel := context.WithTimeout(ctx, actionTime)
	defer cancel()
	done, err := s.do(doing, c, action)
	writing, cancel := ending(ctx)
	defer cancel()
	if unopened, ok := errors.AsType[unopenedError](err); ok {
		s.unopened(ctx, c, unopened.cause)
		err = s.releaseUnopened(writing, c, claim, action, unopened.cause)
	} else {
		err = s.endAction(writing, c, action, claim, done, err)
	}
	if err != nil && !errors.Is(err, domain.ErrFenced) {
		slog.WarnContext(ctx, "action not noted", "action_id", action.ID, "error", err)
	}
}

// releaseUnopened ends an action whose delegation is lost. Any other is gone on with later.
func (s *service) releaseUnopened(ctx context.Context, c domain.Connection, claim uuid.UUID, action domain.DelegatedAction, cause error) error {
	if !errors.Is(cause, errLost) {
		return s.actions.Release(ctx, action, claim, retryPause)
	}
	status, _, err := s.delegations.Status(ctx, c.ProjectID, c.ID)
	if err == nil && status.IsOpen() { // it has been given another trust or secret since
		return s.actions.Release(ctx, action, claim, retryPause)
	}
	c.Status, c.Reason = domain.ConnectionLost, domain.LostReason(c.Kind)
	return s.actions.End(ctx, action, claim, endedBy(c))
}

func (s *service) endAction(ctx context.Context, c domain.Connection, action domain.DelegatedAction, claim uuid.UUID, done bool, failed error) error {
	switch {
	case done:
		return s.actions.End(ctx, action, claim, nil)
	case failed == nil:
		return s.actions.Release(ctx, action, claim, actionPause)
	}
	if apperr.CodeOf(failed) == apperr.Suspended { // while it was being done
		return s.actions.Release(ctx, action, claim, suspendedPause)
	}
	if paused, ok := errors.AsType[pausedError](failed); ok {
		return s.actions.Release(ctx, action, claim, paused.pause)
	}
	slog.WarnContext(ctx, "action", "action_id", action.ID, "action", action.Ask.Verb, "instance_id", action.InstanceID, "error", failed)
	over := ordering.Final(failed) || apperr.CodeOf(failed) == apperr.DelegationLost
	if now, err := s.clock.Now(ctx); err == nil && now.Sub(c.WaitingSince(action.CreatedAt)) > retryFor {
		over = true
	}
	if over {
		return s.actions.End(ctx, action, claim, problemOf(failed))
	}
	return s.actions.Release(ctx, action, claim, s.pauseFor(ctx, action.CreatedAt))
}

// do does what is next. done says that nothing is left to do; without an error there is.
func (s *service) do(ctx context.Context, c domain.Connection, action domain.DelegatedAction) (done bool, err error) {
	now, err := s.clock.Now(ctx) // before Nova is asked
	if err != nil {
		return false, err
	}
	// Looked at again: it may have ended since it was listed, and a token of a credential goes on working.
	if c.Status, c.Reason, err = s.delegations.Status(ctx, c.ProjectID, c.ID); err != nil {
		return false, err
	}
	if c.Status == domain.ConnectionSuspended {
		return false, pausedError{suspendedPause}
	}
	if permission, ok := domain.PermissionFor(action.Ask.Verb); ok {
		if err := c.Permits(now, permission); err != nil {
			return false, err
		}
	}
	err = s.cloud.use(ctx, c, func(cloud session) (err error) {
		a := acting{service: s, cloud: cloud, connection: c, action: action, now: now}
		if action.Ask.Verb == domain.Connect {
			err = a.connect(ctx)
			done = err == nil
		} else {
			done, err = a.act(ctx)
		}
		return err
	})
	if err == nil && !done && now.Sub(c.WaitingSince(action.CreatedAt)) > retryFor {
		err = errNoEnd
	}
	return done, err
}

// pausedError says that an action is to be gone on with after a pause.
type pausedError struct{ pause time.Duration }

// Error implements error.
func (e pausedError) Error() string { return "to be gone on with in " + e.pause.String() }

// errNoEnd ends an action that Nova accepts again and again and never brings to its end.
var errNoEnd = apperr.New(apperr.Conflict, "Nova has not brought it to its end within %s", retryFor)

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
		s.wake("deliver-events")
	}
}
