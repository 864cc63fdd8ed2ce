package servers

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// actionStore keeps the actions that run-connections does.
type actionStore interface {
	Create(ctx context.Context, wanted domain.DelegatedAction) (domain.DelegatedAction, error)
	FindStored(ctx context.Context, wanted domain.DelegatedAction) (domain.DelegatedAction, error)
	Connect(ctx context.Context, wanted domain.DelegatedAction) (known *domain.Instance, action domain.DelegatedAction, err error)
	Get(ctx context.Context, filter domain.Filter, id uuid.UUID) (domain.DelegatedAction, error)
}

// Action reads what has become of an action through a connection.
func (s service) Action(ctx context.Context, a access, id uuid.UUID) (domain.DelegatedAction, error) {
	return s.actions.Get(ctx, a.Filter(), id)
}

// enqueue stores an action on one server for run-connections. What the server's state allows is decided when it is
// done, by what Nova then says.
func (s service) enqueue(ctx context.Context, a access, req actionRequest, t target) outcome {
	i := t.instance
	o := outcome{ID: t.id, State: i.State, tracked: true}
	if i.ID == uuid.Nil {
		o.err = a.notFound(t.id)
		return o
	}
	wanted := a.newAction(req.ActionRequest, i.ID)
	if req.key.id != uuid.Nil {
		wanted.ID, wanted.BodySHA256 = req.key.id, req.key.of(i.ServerID)
		stored, err := s.actions.FindStored(ctx, wanted)
		if err != nil || stored.Repeated {
			o.err = err
			return o.stored(stored)
		}
	}
	switch {
	case i.State == domain.InstanceDeleted && req.Action == domain.Delete:
		return o
	case i.State == domain.InstanceDeleted:
		o.err = req.Check(i.State)
	case i.ServerID == "":
		o.err = actions.ErrNoServer
	case !(actions.Action{ActionRequest: req.ActionRequest, Force: req.force}).MayDelete(i.Origin):
		o.err = actions.ErrNotOurs
	}
	if o.err != nil {
		return o
	}
	var stored domain.DelegatedAction
	if req.Action == domain.Deploy {
		stored, o.err = s.enqueueDeploy(ctx, wanted, *req.deploy)
	} else {
		stored, o.err = s.actions.Create(ctx, wanted)
	}
	return o.stored(stored)
}

// newAction is an action that the caller requests.
func (a access) newAction(req domain.ActionRequest, instance uuid.UUID) domain.DelegatedAction {
	return domain.DelegatedAction{
		ID: uuid.Must(uuid.NewV7()), ProjectID: a.ProjectID, ConnectionID: a.Connection.ID, InstanceID: instance,
		UserID: a.Identity.UserID, Request: req, Actor: a.Actor(),
	}
}

// stored is the outcome of an action that is stored.
func (o outcome) stored(action domain.DelegatedAction) outcome {
	if o.err == nil {
		o.ActionID, o.Changed, o.repeated = &action.ID, true, action.Repeated
	}
	return o
}

// bootTime is what a guest needs from a rebuild to its token's use: one that is rebuilt later would come too late.
const bootTime = 2 * time.Minute

// enqueueDeploy stores a deployment. Only run-connections can read what it takes.
func (s service) enqueueDeploy(ctx context.Context, wanted domain.DelegatedAction, d deploy) (domain.DelegatedAction, error) {
	now, err := s.connections.Now(ctx) // before the token's time begins
	if err != nil {
		return wanted, err
	}
	made, userData, err := s.agents.prepare(ctx, d, wanted.ProjectID, wanted.InstanceID, wanted.ConnectionID)
	if err != nil {
		return wanted, err
	}
	payload, err := json.Marshal(domain.DelegatedDeploy{
		ID: made.ID, ImageID: d.serverImage, UserData: userData.Reveal(),
		NotAfter: now.Add(s.agents.validFor - min(bootTime, s.agents.validFor/4)),
	})
	if err != nil {
		return wanted, err
	}
	if wanted.Payload, err = s.agents.seal.Seal(wanted.SealedFor(), domain.Secret(payload)); err != nil {
		return wanted, err
	}
	stored, err := s.actions.Create(ctx, wanted)
	if err != nil && !apperr.Retryable(err) || stored.Repeated {
		s.agents.drop(ctx, made) // else it is open whether it will be done
	}
	return stored, err
}
