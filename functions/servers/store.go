package servers

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// newAction is an action that the caller requests through its connection.
func (a access) newAction(req actionRequest, instance uuid.UUID) domain.DelegatedAction {
	return domain.DelegatedAction{
		ID: uuid.Must(uuid.NewV7()), ProjectID: a.ProjectID, ConnectionID: a.Connection.ID, InstanceID: instance,
		UserID: a.Identity.UserID, Request: req.ActionRequest, ImageName: req.imageName, Actor: a.Actor(),
	}
}

// store stores the action for run-connections, which decides by the server's state in Nova then.
func (t task) store(ctx context.Context, o *outcome) (err error) {
	if !o.isTracked {
		return t.notFound(t.id)
	}
	action, stored := t.newAction(t.actionRequest, t.instance.ID), domain.DelegatedAction{}
	if t.key.id != uuid.Nil {
		action.ID, action.BodySHA256 = t.key.id, t.key.of(t.serverID)
		if stored, err = t.actions.FindStored(ctx, action); err != nil {
			return err
		}
	}
	if !stored.Repeated {
		isDeleted := t.instance.State == domain.InstanceDeleted
		switch {
		case isDeleted && t.Action == domain.Delete:
			return nil
		case isDeleted:
			return t.Check(t.instance.State)
		case t.serverID == "":
			return actions.ErrNoServer
		case !t.asAction().MayDelete(t.instance.Origin):
			return actions.ErrNeedsForce
		case t.Action == domain.Deploy:
			stored, err = t.storeDeployment(ctx, action)
		default:
			stored, err = t.actions.Create(ctx, action)
		}
	}
	if err == nil {
		o.ActionID, o.Changed, o.isRepeated = &stored.ID, true, stored.Repeated
	}
	return err
}

// bootTime is what a guest needs from a rebuild until it uses its token: a later rebuild would be useless.
const bootTime = 2 * time.Minute

// storeDeployment stores a deployment, encrypted for run-connections.
func (t task) storeDeployment(ctx context.Context, action domain.DelegatedAction) (domain.DelegatedAction, error) {
	now, err := t.connections.Now(ctx) // before the token's time begins
	if err != nil {
		return action, err
	}
	made, userData, err := t.agents.prepare(ctx, *t.deploy, action.ProjectID, action.InstanceID, action.ConnectionID)
	if err != nil {
		return action, err
	}
	payload, err := json.Marshal(domain.DelegatedDeploy{
		ID: made.ID, ImageID: t.deploy.serverImage, UserData: userData.Reveal(),
		NotAfter: now.Add(t.agents.validFor - min(bootTime, t.agents.validFor/4)),
	})
	if err != nil {
		return action, err
	}
	if action.Payload, err = t.agents.key.Seal(action.SealedFor(), domain.Secret(payload)); err != nil {
		return action, err
	}
	stored, err := t.actions.Create(ctx, action)
	if stored.Repeated {
		t.agents.drop(ctx, made)
	}
	t.agents.dropFailed(ctx, made, err)
	return stored, err
}
