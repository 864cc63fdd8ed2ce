package leases

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// step is the next step for a reservation that run-connections works for.
type step struct {
	*pass

	r *domain.Reservation
}

// longAction is after what an action for a lease usually takes. Then its reason says what it waits for.
const longAction = 2 * time.Minute

// waits has the lease say what it waits for, if that takes long.
func (s step) waits(since time.Time, what string, args ...any) {
	if s.now.Sub(since) > longAction {
		what += " since " + since.UTC().Format(time.RFC3339)
		s.reason = domain.ProblemOf(apperr.New(apperr.Conflict, what, args...))
	}
}

// current is the action that run-connections does or has done for the reservation; nil = none.
func (s step) current(ctx context.Context) (*domain.DelegatedAction, error) {
	if s.r.ActionID == uuid.Nil || s.lease.ConnectionID == uuid.Nil {
		return nil, nil //nolint:nilnil // nothing is under way
	}
	filter := domain.Filter{ProjectID: s.lease.ProjectID, ConnectionID: s.lease.ConnectionID}
	found, err := s.Actions.Get(ctx, filter, s.r.ActionID)
	if apperr.CodeOf(err) == apperr.NotFound { // of the connection before, or too old
		return nil, nil //nolint:nilnil // nothing is under way
	}
	return &found, err
}

// request has run-connections do the action of that id, which follows from what it is for (actionID), so that a process
// that dies before the reservation is stored makes no second one.
func (s step) request(
	ctx context.Context, id, instance uuid.UUID, action domain.Action, args domain.ActionArguments,
) error {
	wasMoving := s.isMoving
	s.r.ActionID, s.isMoving = id, true
	if current, err := s.current(ctx); err != nil || current != nil {
		return err
	}
	_, err := s.Actions.Create(ctx, domain.DelegatedAction{
		ID: s.r.ActionID, ProjectID: s.lease.ProjectID, ConnectionID: s.lease.ConnectionID, InstanceID: instance,
		UserID: s.lease.UserID, Actor: s.lease.Actor, Request: domain.ActionRequest{Action: action}, Arguments: args,
	})
	s.Wake("run-connections")
	if err != nil {
		s.r.ActionID, s.isMoving = uuid.Nil, wasMoving
	}
	return err
}

func (s step) actionID(action domain.Action) uuid.UUID {
	name := fmt.Sprintf("%s/%s/%d/%d/%d", s.lease.ConnectionID, action, s.lease.Version, s.lease.Attempts,
		s.r.ActionsDone)
	return uuid.NewSHA1(s.r.ID, []byte(name))
}

// forgetAction makes the next action another one, also when it is the same.
func (s step) forgetAction() {
	if s.r.ActionID != uuid.Nil {
		s.r.ActionID = uuid.Nil
		s.r.ActionsDone++
	}
}

// abandon ends a start that does not succeed, because it keeps no end waiting.
func (s step) abandon(ctx context.Context, current domain.DelegatedAction) error {
	s.isMoving = true
	return s.Actions.Abandon(ctx, current, &domain.Problem{
		Code: string(apperr.Conflict), Detail: "the lease has ended meanwhile",
	})
}

// failed is the error of an action that failed.
func failed(problem *domain.Problem) error {
	if problem == nil {
		return apperr.New(apperr.Conflict, "the action failed")
	}
	return apperr.New(apperr.Code(problem.Code), "%s", problem.Detail)
}
