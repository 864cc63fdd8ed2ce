package servers

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// mayAct refuses who may only look. What Nova is asked for it decides itself; what only we write it does not hear of.
func mayAct(who domain.Identity) error {
	if who.MayAct() {
		return nil
	}
	return apperr.New(apperr.Forbidden, "this takes a role that may do more than read")
}

// Connect takes an existing server of the caller's project under management, as the instance with the id given (zero = any). made is
// false when it was managed already.
func (s service) Connect(
	ctx context.Context, who domain.Identity, token domain.Secret, serverID string, id uuid.UUID,
) (instance domain.Instance, made bool, err error) {
	if err := mayAct(who); err != nil {
		return instance, false, err
	}
	now, err := s.connections.Now(ctx) // before Nova is asked
	if err != nil {
		return instance, false, err
	}
	server, err := s.read(ctx, s.cloud.As(token, who.ProjectID), who, serverID, false)
	if err != nil {
		return instance, false, err
	}
	if state := domain.StateOf(server.Status, server.Task); server.Partial || state == domain.InstanceDeleting || state == domain.InstanceDeleted {
		return instance, false, apperr.New(apperr.Conflict, "a server in the state %s cannot be connected", state)
	}
	wanted := domain.Instance{ProjectID: who.ProjectID, ID: id, SeenAt: now, Spec: sizes(server)}
	wanted.Seen(server)
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil).Doing(domain.Connect, uuid.Nil))
	instance, made, err = s.instances.Connect(ctx, wanted)
	if err == nil {
		s.wake("deliver-events", "poll-instances")
	}
	return instance, made, err
}

// sizes is what counts of a server that was there already.
func sizes(s domain.Server) domain.LaunchSpec {
	spec := domain.LaunchSpec{
		FlavorName: s.Flavor.Name, VCPUs: s.Flavor.VCPUs, RAMMB: s.Flavor.RAMMB, DiskGB: s.Flavor.DiskGB, KeyName: s.KeyName, Zone: s.Zone,
	}
	if s.Image != nil {
		spec.ImageID = s.Image.ID
	}
	return spec
}

// Disconnect lets an instance of the caller's project go, whoever manages it; Nova is not told. One that was let go already, and one
// whose server is gone, is no error; a server that nobody has tracked is.
func (s service) Disconnect(ctx context.Context, who domain.Identity, id string) error {
	if err := mayAct(who); err != nil {
		return err
	}
	targets, err := s.targets(ctx, who, []string{id})
	if err != nil {
		return err
	}
	if t := targets[0].tracked; t != nil {
		return s.letGo(ctx, who, who.ProjectID, domain.Instance{ID: t.ID, ServerID: t.ServerID, State: t.State}, uuid.Nil)
	}
	return s.wasLetGo(ctx, who.ProjectID, id, uuid.Nil)
}

func (s service) letGo(ctx context.Context, who domain.Identity, projectID string, i domain.Instance, connection uuid.UUID) error {
	if i.ServerID == "" && i.State != domain.InstanceDeleted {
		return noServer()
	}
	ctx = domain.WithActor(ctx, domain.ActorOf(who, connection).Doing(domain.Disconnect, uuid.Nil))
	done, err := s.instances.Disconnect(ctx, projectID, i.ID, connection)
	if done {
		s.wake("deliver-events")
	}
	return err
}

func (s service) wasLetGo(ctx context.Context, projectID, id string, connection uuid.UUID) error {
	gone, err := s.instances.LetGo(ctx, projectID, id, connection)
	if err == nil && !gone {
		return apperr.New(apperr.NotFound, "there is no instance %s, and no server of this id is tracked", id)
	}
	return err
}

func noServer() error {
	return apperr.New(apperr.Conflict, "the instance has no server: its order is not that far, or Nova refused it")
}
