package servers

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// connecting is the result of connecting a server: its instance, or the action by which run-connections connects it.
type connecting struct {
	instance *domain.Instance
	made     bool // it was not tracked before
	action   domain.DelegatedAction
}

// Connect tracks an existing server of the project, as the instance with the id given (zero = any).
func (s service) Connect(ctx context.Context, a access, serverID string, id uuid.UUID) (out connecting, err error) {
	if err := a.authorize(domain.Connect); err != nil {
		return out, err
	}
	if a.cloud == nil {
		action := a.newAction(newActionRequest(domain.Connect, false, false), id)
		action.ServerID = serverID
		if out.instance, out.action, err = s.actions.Connect(ctx, action); err == nil && out.instance == nil {
			s.wake("deliver-events", a.worker())
		}
		return out, err
	}
	now, err := s.connections.Now(ctx) // before Nova is read
	if err != nil {
		return out, err
	}
	wanted := domain.Instance{ProjectID: a.ProjectID, ID: id, SeenAt: now}
	actor := a.Actor().Doing(domain.Connect, uuid.Nil)
	instance, made, err := s.engine().Connect(ctx, a.cloud, serverID, a.ProjectID, wanted, actor)
	if err == nil {
		s.wake("deliver-events", a.worker())
	}
	return connecting{instance: &instance, made: made}, err
}

// Disconnect stops tracking a server, which stays as it is. It is no error for an instance that is disconnected
// already or whose server is deleted, but for a server that was never tracked.
func (s service) Disconnect(ctx context.Context, a access, id string) error {
	if err := a.authorize(domain.Disconnect); err != nil {
		return err
	}
	i, err := s.find(ctx, a, id)
	switch {
	case err != nil:
		return err
	case i.ID == uuid.Nil:
		wasTracked, err := s.instances.WasDisconnected(ctx, a.Filter(), id)
		if err == nil && !wasTracked {
			err = a.notFound(id)
		}
		return err
	case i.LeaseID != uuid.Nil:
		return apperr.New(apperr.Conflict, "the server is in lease %s, which would not end it then: end the lease "+
			"first, by DELETE /v1/leases/%[1]s, with ?on_end=none to leave the server as it is", i.LeaseID)
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

// MarkReusable reports whether orders with reuse may use a server of the caller's project. A user of the connection
// that manages it finds no such server, unless it is of the same project.
func (s service) MarkReusable(ctx context.Context, a access, id string, reusable bool) (domain.Instance, error) {
	if err := a.authorize(domain.Connect); err != nil {
		return domain.Instance{}, err
	}
	marked, found, err := s.instances.MarkReusable(ctx, a.ProjectID, id, reusable)
	if err != nil || found {
		return marked, err
	}
	i, err := s.find(ctx, a, id)
	switch {
	case err != nil:
		return marked, err
	case i.ID != uuid.Nil && i.ConnectionID == uuid.Nil:
		return marked, apperr.New(apperr.Conflict,
			"the server %s is not managed through a connection: only orders through one use idle servers", id)
	}
	return marked, apperr.New(apperr.NotFound, "the project has no server %s that is managed through a connection", id)
}
