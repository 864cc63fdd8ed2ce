package runconnections

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/ordering"
)

// acting is one look at an action.
type acting struct {
	*service

	cloud      session
	connection domain.Connection
	action     domain.DelegatedAction
	now        time.Time
}

// act looks at the instance's server, and has Nova do what is next.
func (a acting) act(ctx context.Context) (done bool, err error) {
	through := domain.Through{ProjectID: a.connection.ProjectID, ConnectionID: a.connection.ID}
	found, err := a.instances.Managed(ctx, through, []string{a.action.InstanceID.String()})
	if err != nil {
		return false, err
	}
	i := found[0]
	switch {
	case i.ID == uuid.Nil:
		return false, apperr.New(apperr.NotFound, "there is no instance %s", a.action.InstanceID)
	case i.ServerID == "" && i.Decided():
		return false, apperr.New(apperr.Conflict, "the instance has no server: Nova refused it")
	case i.ServerID == "":
		return false, a.wait(actionPatience, apperr.New(apperr.Conflict, "the instance has no server: its order is not that far"))
	}
	server, err := a.cloud.Server(ctx, i.ServerID)
	if a.action.Ask.Verb == domain.Delete {
		return a.remove(ctx, i, server, err)
	}
	if err == nil && server.Status == "DELETED" { // Nova shows it for a moment more
		err = apperr.New(apperr.NotFound, "the server %s is deleted", i.ServerID)
	}
	if err != nil {
		return false, err
	}
	if a.action.Ask.Verb == domain.Deploy {
		return a.deploy(ctx, i, server)
	}
	return a.tellOnce(ctx, i, server)
}

// wait is nil while the action may wait, and then why it waited for too long.
func (a acting) wait(patience time.Duration, why error) error {
	if a.now.Sub(a.action.CreatedAt) > patience {
		return why
	}
	return nil
}

// check refuses what the server's state does not allow; wait says that it soon may.
func (a acting) check(state domain.InstanceState, patience time.Duration) (wait bool, err error) {
	err = a.action.Ask.Check(state)
	if err != nil && slices.Contains(domain.MovingStates(), state) {
		return true, a.wait(patience, err)
	}
	return false, err
}

// tellOnce has Nova do it to the server; that it is done is Nova's to say.
func (a acting) tellOnce(ctx context.Context, i domain.Instance, server domain.Server) (done bool, err error) {
	state := domain.StateOf(server.Status, server.Task)
	if a.action.Ask.Idle(state, server.Task) {
		return true, nil
	}
	if wait, err := a.check(state, actionPatience); wait || err != nil {
		return false, err
	}
	switch a.action.Ask.Verb {
	case domain.Stop:
		err = a.cloud.StopServer(ctx, server.ID)
	case domain.Reboot:
		err = a.cloud.RebootServer(ctx, server.ID, a.action.Ask.Hard)
	default:
		err = a.start(ctx, server.ID, state)
	}
	if err == nil {
		a.note(ctx, i, server)
	}
	return err == nil, err
}

func (a acting) start(ctx context.Context, id string, state domain.InstanceState) error {
	if state == domain.InstanceShelved {
		return a.cloud.UnshelveServer(ctx, id)
	}
	return a.cloud.StartServer(ctx, id)
}

// remove has Nova delete the server, and is done when nothing is left of it. lookErr is that of the look at the server.
func (a acting) remove(ctx context.Context, i domain.Instance, server domain.Server, lookErr error) (done bool, err error) {
	gone := apperr.CodeOf(lookErr) == apperr.NotFound
	if lookErr != nil && !gone {
		return false, lookErr
	}
	state := domain.StateOf(server.Status, server.Task)
	switch {
	case gone, server.Status == "DELETED", server.Status == "SOFT_DELETED": // the latter is kept for a while by Nova's own will
		a.write(ctx, i, domain.Server{ID: i.ServerID, Status: "DELETED", Partial: true})
		return a.cleared(ctx, i)
	case state == domain.InstanceError && server.Fault != nil && server.Fault.Created.After(a.action.CreatedAt):
		a.write(ctx, i, server)
		return false, faultOf(server) // Nova has tried since it was asked for: to be told again would not help it
	case state == domain.InstanceDeleting:
		return false, a.wait(actionPatience, apperr.New(apperr.Conflict, "Nova has not deleted the server for %s", actionPatience))
	}
	if wait, err := a.check(state, actionPatience); wait || err != nil {
		return false, err
	}
	if at, exhausted := i.NextDelete(a.action.CreatedAt); a.now.Before(at) {
		return false, pausedError{at.Sub(a.now)}
	} else if exhausted {
		a.write(ctx, i, server)
		return false, notDeleted(i, server)
	}
	if err := ordering.Delete(ctx, a.cloud, a.instances, i, a.action.CreatedAt); err != nil {
		return false, err
	}
	a.note(ctx, i, server)
	return false, nil
}

// notDeleted says that Nova was asked often enough to delete the server.
func notDeleted(i domain.Instance, server domain.Server) error {
	why := ""
	if server.Fault != nil {
		why = ": " + server.Fault.Message
	}
	return apperr.New(apperr.Conflict, "Nova was asked %d times to delete the server %s (%s), which is still there, in the status %s%s",
		i.DeleteTries, server.ID, server.Name, server.Status, why)
}

// cleared says whether the server's ports are gone, too.
func (a acting) cleared(ctx context.Context, i domain.Instance) (done bool, err error) {
	left, err := a.cloud.Ports(ctx, i.ServerID)
	if err == nil && left == 0 {
		return true, nil
	}
	if a.now.Sub(a.action.CreatedAt) > portsPatience {
		slog.WarnContext(ctx, "a server is deleted, and its ports may not be", "instance_id", i.ID, "server_id", i.ServerID, "ports", left, "error", err)
		return true, nil
	}
	return false, nil
}

// deploy does the next step of a deployment.
func (a acting) deploy(ctx context.Context, i domain.Instance, server domain.Server) (done bool, err error) {
	var wanted domain.DelegatedDeploy
	if err := a.unseal(a.action.SealedFor(), a.action.Payload, &wanted); err != nil {
		return false, err
	}
	state := domain.StateOf(server.Status, server.Task)
	if asked := server.Metadata[domain.DeployMark] == wanted.ID.String(); !asked && !wanted.NotAfter.IsZero() && !a.now.Before(wanted.NotAfter) {
		return false, apperr.New(apperr.Conflict, "the server could not be rebuilt in time for the deployment's token: deploy again")
	}
	switch domain.DeployNext(wanted.ID, server) {
	case domain.DeployDone:
		a.write(ctx, i, server)
		return true, nil
	case domain.DeployFailed:
		a.write(ctx, i, server)
		return false, faultOf(server)
	case domain.DeployStart:
		err = a.start(ctx, server.ID, state)
	case domain.DeployRebuild:
		err = a.rebuild(ctx, server, wanted)
	default:
		if wait, err := a.check(state, deployPatience); wait || err != nil {
			return false, err
		}
		return false, a.wait(deployPatience, apperr.New(apperr.Conflict, "Nova has been at work on the server for %s", deployPatience))
	}
	if err == nil {
		a.note(ctx, i, server)
	}
	return false, err
}

func (a acting) rebuild(ctx context.Context, server domain.Server, wanted domain.DelegatedDeploy) error {
	r := domain.Rebuild{ID: wanted.ID, ImageID: wanted.ImageID, UserData: domain.Secret(wanted.UserData), Metadata: server.Marked(wanted.ID)}
	if r.ImageID == "" {
		if server.Image == nil {
			return apperr.InvalidField("server_image", "must be given for a server that boots from a volume: Nova does not say which image that was made from")
		}
		r.ImageID = server.Image.ID
	}
	if err := a.connection.Limits.CheckImage("server_image", r.ImageID); err != nil {
		return err
	}
	return a.cloud.RebuildServer(ctx, server.ID, r, server.Image == nil)
}

// faultOf is why Nova could not rebuild or delete a server.
func faultOf(server domain.Server) error {
	if server.Fault == nil {
		return apperr.New(apperr.Conflict, "the server is in ERROR")
	}
	return apperr.New(apperr.Conflict, "the server is in ERROR: %s", server.Fault.Message)
}

// connect takes an existing server of the connection's project under management.
func (a acting) connect(ctx context.Context) error {
	server, err := a.cloud.Server(ctx, a.action.ServerID)
	if err != nil {
		return err
	}
	switch {
	case server.ProjectID != a.connection.ActsAs.ProjectID: // an admin's delegation shows those of all
		return apperr.New(apperr.NotFound, "there is no server %s", a.action.ServerID)
	case server.Partial:
		return apperr.New(apperr.Unavailable, "the server's cell is down: its sizes are not known")
	}
	if state := domain.StateOf(server.Status, server.Task); state == domain.InstanceDeleting || state == domain.InstanceDeleted {
		return apperr.New(apperr.Conflict, "a server in the state %s cannot be connected", state)
	}
	spec := domain.LaunchSpec{
		FlavorName: server.Flavor.Name, VCPUs: server.Flavor.VCPUs, RAMMB: server.Flavor.RAMMB, DiskGB: server.Flavor.DiskGB,
		KeyName: server.KeyName, Zone: server.Zone, Metadata: server.Metadata,
	}
	if server.Image != nil {
		spec.ImageID = server.Image.ID
	}
	wanted := domain.Instance{
		ID: a.action.InstanceID, ProjectID: a.connection.ProjectID, ConnectionID: a.connection.ID, Remote: a.connection.Remote(), Spec: spec,
	}
	wanted.Seen(server)
	wanted.SeenAt = a.now
	_, _, err = a.instances.Connect(domain.WithActor(ctx, a.actor()), wanted)
	return err
}

// note writes down at once what follows from Nova's yes, and write what Nova shows. Should that fail, the next look at all servers
// finds it.
func (a acting) note(ctx context.Context, i domain.Instance, server domain.Server) {
	i.Seen(server)
	i.State, i.Problem = a.action.Ask.After(), nil
	a.change(domain.WithActor(ctx, a.actor()), i)
}

// actor is who has asked for the action.
func (a acting) actor() *domain.Actor { return a.action.Actor.Doing(a.action.Ask.Verb, a.action.ID) }

func (a acting) write(ctx context.Context, i domain.Instance, server domain.Server) {
	if i.Found(server) {
		a.change(ctx, i)
	}
}

func (a acting) change(ctx context.Context, i domain.Instance) {
	i.SeenAt = time.Time{} // now
	ctx, cancel := ending(ctx)
	defer cancel()
	if _, err := a.instances.Change(ctx, []domain.Instance{i}); err != nil {
		slog.WarnContext(ctx, "an action is not noted; the next look finds it", "instance_id", i.ID, "error", err)
	}
}
