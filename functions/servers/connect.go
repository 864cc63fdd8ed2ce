package servers

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// connecting is what became of a request to connect a server: it is an instance now, or run-connections makes it one.
type connecting struct {
	instance *domain.Instance
	made     bool // it was not managed before
	action   domain.DelegatedAction
}

// Connect takes an existing server of the project under management, as the instance with the id given (zero = any).
func (s service) Connect(ctx context.Context, a access, serverID string, id uuid.UUID) (out connecting, err error) {
	if err := a.authorize(domain.Connect); err != nil {
		return out, err
	}
	if a.cloud == nil {
		wanted := a.newAction(domain.ActionRequest{Action: domain.Connect}, id)
		wanted.ServerID = serverID
		if out.instance, out.action, err = s.actions.Connect(ctx, wanted); err == nil && out.instance == nil {
			s.wake("run-connections", "deliver-events")
		}
		return out, err
	}
	now, err := s.connections.Now(ctx) // before Nova is asked
	if err != nil {
		return out, err
	}
	wanted := domain.Instance{ProjectID: a.ProjectID, ID: id, SeenAt: now}
	instance, made, err := s.engine().Connect(ctx, a.cloud, serverID, a.ProjectID, wanted, a.Actor().Doing(domain.Connect, uuid.Nil))
	if err == nil {
		s.wake("deliver-events", "poll-instances")
	}
	return connecting{instance: &instance, made: made}, err
}

// Disconnect ends the management of an instance; its server stays as it is. One that was disconnected already, and one
// whose server is gone, is no error; a server that nobody has tracked is.
func (s service) Disconnect(ctx context.Context, a access, id string) error {
	if err := a.authorize(domain.Disconnect); err != nil {
		return err
	}
	i, err := s.find(ctx, a, id)
	switch {
	case err != nil:
		return err
	case i.ID == uuid.Nil:
		was, err := s.instances.WasDisconnected(ctx, a.Filter(), id)
		if err == nil && !was {
			err = a.notFound(id)
		}
		return err
	case i.ServerID == "" && i.State != domain.InstanceDeleted:
		return actions.ErrNoServer
	}
	ctx = domain.WithActor(ctx, a.Actor().Doing(domain.Disconnect, uuid.Nil))
	isDone, err := s.instances.Disconnect(ctx, a.Filter(), i.ID)
	if isDone {
		s.wake("deliver-events")
	}
	return err
}
