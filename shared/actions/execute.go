package actions

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// executor does one step of an action.
type executor struct {
	Engine

	cloud Cloud
	Action

	readAt  time.Time      // by the database's clock, before Nova is called; zero for a server that is not tracked
	resized *domain.Flavor // that the instance holds a connection's quota for before Nova is called
}

// setReadAt notes the time before the server is read. What others have observed since is newer than what this step
// records.
func (x *executor) setReadAt(ctx context.Context) error {
	switch {
	case x.Instance.ID == uuid.Nil:
	case x.Follow != nil:
		x.readAt = x.Follow.Now
	default:
		return x.setCalledAt(ctx)
	}
	return nil
}

// setCalledAt moves readAt to the time before Nova is called: what others saw before is older than the call's outcome.
func (x *executor) setCalledAt(ctx context.Context) (err error) {
	if x.Instance.ID != uuid.Nil {
		x.readAt, err = x.Instances.Now(ctx)
	}
	return err
}

// run does the next step for the server as Nova shows it.
func (x executor) run(ctx context.Context, server domain.Server) (Progress, error) {
	state := domain.StateOf(server.Status, server.Task)
	// Nova shows it a moment longer
	if x.Follow != nil && x.Action.Action != domain.Delete && server.Status == "DELETED" {
		return Progress{}, apperr.New(apperr.NotFound, "the server %s is deleted", server.ID)
	}
	switch {
	case x.Action.Action == domain.Deploy:
		return x.deploy(ctx, server, state)
	case x.Action.Action == domain.Delete && x.Follow != nil:
		return x.followDelete(ctx, server, state)
	case x.Action.Action == domain.Shelve && x.Follow != nil:
		return x.shelve(ctx, server, state)
	case x.Action.Action == domain.Snapshot:
		return x.snapshot(ctx, server, state)
	case x.Idle(state, server.Task), x.Check(state) == nil && x.Fulfilled(server, x.Arguments):
		return Progress{State: state, Done: true}, nil
	case x.LogName() != "" && x.Follow != nil:
		return x.followLogged(ctx, server, state)
	}
	return x.apply(ctx, server, state)
}

// followLogged does an action once: Nova may have accepted the call before, with its answer lost. A soft reboot in
// progress does not stand for a hard one.
func (x executor) followLogged(
	ctx context.Context, server domain.Server, state domain.InstanceState,
) (Progress, error) {
	if x.Hard && server.Status == "REBOOT" {
		return x.apply(ctx, server, state)
	}
	switch wasAccepted, err := WasAccepted(ctx, x.cloud, server.ID, x.ActionRequest, x.Follow.RequestedAt); {
	case err != nil:
		return Progress{}, err
	case wasAccepted:
		x.storeServer(ctx, server)
		return Progress{State: state, Done: true}, nil
	}
	return x.apply(ctx, server, state)
}

// apply calls Nova if the server's state allows it. Only a deletion that is followed continues after that.
func (x executor) apply(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	if err := x.CheckServer(server); err != nil {
		return x.notAllowed(server, state, err)
	}
	if x.Instance.ID != uuid.Nil && !x.MayDelete(x.Instance.Origin) {
		return Progress{}, ErrNeedsForce
	}
	if err := x.prepare(ctx, server); err != nil {
		return Progress{}, err
	}
	if err := x.setCalledAt(ctx); err != nil {
		return Progress{}, err
	}
	password, err := x.callNova(ctx, server, state)
	if err != nil {
		x.restoreSize(ctx, err)
		return Progress{}, err
	}
	x.recordAccepted(ctx, server)
	x.keepSize(ctx)
	x.releaseFloatingIP(ctx, server.ID)
	isDone := x.Follow == nil || x.Action.Action != domain.Delete
	return Progress{State: x.After(state), Accepted: true, Done: isDone, Password: password}, nil
}

// notAllowed blocks the action while Nova is working on the server, and fails it in other states.
func (x executor) notAllowed(server domain.Server, state domain.InstanceState, err error) (Progress, error) {
	if server.IsMoving() {
		return Progress{State: state, Blocked: err}, nil
	}
	return Progress{}, err
}

// MayDelete reports whether the action may be done to a server of that origin: without force a connected one is not
// deleted.
func (a Action) MayDelete(origin string) bool {
	return a.Action != domain.Delete || a.Force || origin != domain.OriginConnected
}

// ErrNeedsForce is the error of deleting a server that was connected.
var ErrNeedsForce = &apperr.Error{
	Code:    apperr.Conflict,
	Message: "the server existed before it was connected: disconnect it, or delete it with force",
	Fields: []apperr.Field{{
		Field: "force", Detail: "must be true to delete a server that was connected", Allowed: []string{"true"},
	}},
}

// callNova makes the call for a server in the state. Only a rescue has a password.
func (x executor) callNova(
	ctx context.Context, server domain.Server, state domain.InstanceState,
) (password domain.Secret, err error) {
	if x.Action.Action == domain.Rescue {
		return x.cloud.RescueServer(ctx, server, x.Arguments.Image)
	}
	return "", x.begin(ctx, server, state)
}

func (x executor) begin(ctx context.Context, server domain.Server, state domain.InstanceState) error {
	switch x.Action.Action {
	case domain.Delete:
		if x.Follow == nil {
			return x.cloud.DeleteServer(ctx, server.ID)
		}
		return x.Instance.DeleteServer(ctx, x.cloud, x.Instances, x.Follow.RequestedAt)
	case domain.Stop:
		return x.cloud.StopServer(ctx, server.ID)
	case domain.Reboot:
		return x.cloud.RebootServer(ctx, server.ID, x.Hard)
	case domain.Shelve:
		return x.cloud.ShelveServer(ctx, server.ID)
	case domain.Start, domain.Unshelve:
		return x.start(ctx, server.ID, state)
	}
	return x.cloud.ActOnServer(ctx, server, x.Action.Action, x.Arguments)
}

// clockSkew is how far the database's clock and Nova's may differ.
const clockSkew = 5 * time.Second

// WasAccepted reads in Nova's action log whether it has accepted an action with a LogName since the moment.
func WasAccepted(
	ctx context.Context, cloud Cloud, id string, action domain.ActionRequest, since time.Time,
) (bool, error) {
	logged, err := cloud.Actions(ctx, id)
	return slices.ContainsFunc(logged, func(l domain.LoggedAction) bool {
		return l.Name == action.LogName() && l.Start.After(since.Add(-clockSkew))
	}), err
}

func (x executor) start(ctx context.Context, id string, state domain.InstanceState) error {
	if state == domain.InstanceShelved {
		return x.cloud.UnshelveServer(ctx, id)
	}
	return x.cloud.StartServer(ctx, id)
}

// recordAccepted stores the state that follows from the call.
func (x executor) recordAccepted(ctx context.Context, server domain.Server) {
	i := x.Instance
	if x.Action.Action == domain.Rename {
		server.Name = x.Arguments.Name
	}
	i.Observe(server)
	i.Accepted(x.ActionRequest)
	x.record(domain.WithActor(ctx, x.Actor.Doing(x.Action.Action, x.ID)), i)
}

// releaseFloatingIP releases the floating IP that the instance's order made, once Nova has accepted the deletion, also
// when the client hangs up. On failure poll-instances does, where its account is permitted to.
func (x executor) releaseFloatingIP(ctx context.Context, serverID string) {
	if x.Action.Action != domain.Delete || !x.Instance.Spec.MakesFloatingIP() {
		return
	}
	releasing, cancel := domain.Detached(ctx)
	defer cancel()
	if err := x.cloud.ReleaseFloatingIPs(releasing, serverID, domain.FloatingIPMark(x.Instance.ID)); err != nil {
		slog.WarnContext(ctx, "the floating IP of a server that is deleted was not released; poll-instances tries it",
			"instance_id", x.Instance.ID, "error", err)
	}
}

// storeServer stores the server as Nova shows it.
func (x executor) storeServer(ctx context.Context, server domain.Server) {
	if i := x.Instance; i.Found(server) {
		x.record(ctx, i)
	}
}

// record stores a tracked instance, also when the client hangs up. On failure the next poll records it; the action has
// succeeded.
func (x executor) record(ctx context.Context, i domain.Instance) {
	if i.ID == uuid.Nil {
		return
	}
	i.SeenAt = x.readAt
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	if _, err := x.Instances.Change(writing, []domain.Instance{i}); err != nil {
		slog.WarnContext(ctx, "an action is not recorded; the next poll records it", "instance_id", i.ID, "error", err)
	}
}

// Nova deletes a server's ports some seconds after it. Ports that are left after this time are not Nova's.
const portsTime = 3 * time.Minute

// followDelete has Nova delete the server, again if need be, until it and its ports are deleted.
func (x executor) followDelete(
	ctx context.Context, server domain.Server, state domain.InstanceState,
) (Progress, error) {
	switch {
	// Nova may be configured to keep it for a while
	case state == domain.InstanceDeleted, server.Status == "SOFT_DELETED":
		x.storeServer(ctx, domain.Server{ID: x.ServerID, Status: "DELETED", Partial: true})
		return Progress{State: domain.InstanceDeleted, Done: x.portsAreGone(ctx)}, nil
	case state == domain.InstanceError && server.Fault != nil && x.hasTriedSince(server.Fault.Created):
		x.storeServer(ctx, server)
		return Progress{}, faultOf(server) // Nova has tried and failed: another call would not help
	case state == domain.InstanceDeleting:
		blocked := apperr.New(apperr.Conflict, "Nova has not deleted the server for %s", blockedFor)
		return Progress{State: state, Blocked: blocked}, nil
	case x.Check(state) != nil:
		return x.notAllowed(server, state, x.Check(state))
	}
	at, exhausted := x.Instance.NextDelete(x.Follow.RequestedAt)
	if x.Follow.Now.Before(at) {
		return Progress{}, PauseError{at.Sub(x.Follow.Now)}
	}
	if exhausted {
		x.storeServer(ctx, server)
		return Progress{}, undeletable(x.Instance, server)
	}
	return x.apply(ctx, server, state)
}

// hasTriedSince reports whether Nova was called for this deletion, and the moment is after its request: a fault of then
// is Nova's answer to the call. Without a call it is someone else's fault, such as a rebuild's.
func (x executor) hasTriedSince(moment time.Time) bool {
	i, requested := x.Instance, x.Follow.RequestedAt
	return i.DeleteTries > 0 && !i.DeleteTriedAt.Before(requested) && moment.After(requested)
}

// PauseError means that an action continues after a pause.
type PauseError struct{ Pause time.Duration }

// Error implements error.
func (e PauseError) Error() string { return "continues in " + e.Pause.String() }

// undeletable is the error after the last attempt to delete the server.
func undeletable(i domain.Instance, server domain.Server) error {
	why := ""
	if server.Fault != nil {
		why = ": " + server.Fault.Message
	}
	return apperr.New(apperr.Conflict,
		"Nova was called %d times to delete the server %s (%s), which is still there, in the status %s%s",
		i.DeleteTries, server.ID, server.Name, server.Status, why)
}

// portsAreGone reports whether the deleted server's ports are deleted too, or it is too late to wait for that.
func (x executor) portsAreGone(ctx context.Context) bool {
	left, err := x.cloud.Ports(ctx, x.ServerID)
	if err == nil && left == 0 {
		return true
	}
	if x.Follow.Waiting <= portsTime {
		return false
	}
	slog.WarnContext(ctx, "a server is deleted, and its ports may not be",
		"instance_id", x.Instance.ID, "server_id", x.ServerID, "ports", left, "error", err)
	return true
}

// faultOf is why Nova could not rebuild or delete a server.
func faultOf(server domain.Server) error {
	if server.Fault == nil {
		return apperr.New(apperr.Conflict, "the server is in ERROR")
	}
	return apperr.New(apperr.Conflict, "the server is in ERROR: %s", server.Fault.Message)
}

// deploy rebuilds a tracked server with an agent on it. One that is stopped is started first.
func (x executor) deploy(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	if x.Instance.ID == uuid.Nil {
		if err := x.Check(state); err != nil {
			return Progress{}, err
		}
		return Progress{}, apperr.New(apperr.Conflict,
			"the server is not tracked: connect it first, by POST /v1/servers")
	}
	isRequested := x.Deployment.ID != uuid.Nil && server.Metadata[domain.DeployMark] == x.Deployment.ID.String()
	if end := x.Deployment.NotAfter; !isRequested && !end.IsZero() && !x.Follow.Now.Before(end) {
		return Progress{}, apperr.New(apperr.Conflict,
			"the deployment's token has expired before the rebuild: deploy again")
	}
	switch domain.DeployNext(x.Deployment.ID, server) {
	case domain.DeployDone:
		x.storeServer(ctx, server)
		return Progress{State: state, Done: true}, nil
	case domain.DeployFailed:
		x.storeServer(ctx, server)
		return Progress{}, faultOf(server)
	case domain.DeployStart:
		if _, err := x.imageFor(server); err != nil {
			return Progress{}, err
		}
		return x.accepted(ctx, server, state, false, x.start(ctx, server.ID, state))
	case domain.DeployRebuild:
		return x.accepted(ctx, server, state, true, x.rebuild(ctx, server))
	}
	if err := x.Check(state); err != nil {
		return x.notAllowed(server, state, err)
	}
	if x.Follow == nil {
		return Progress{State: state}, nil
	}
	blocked := apperr.New(apperr.Conflict, "Nova has been working on the server for %s", deployBlockedFor)
	return Progress{State: state, Blocked: blocked}, nil
}

// accepted is the progress after a call. Starting the server does not complete the request, rebuilding does.
func (x executor) accepted(
	ctx context.Context, server domain.Server, state domain.InstanceState, isRebuild bool, err error,
) (Progress, error) {
	if err != nil {
		return Progress{}, err
	}
	x.recordAccepted(ctx, server)
	return Progress{State: x.After(state), Accepted: isRebuild}, nil
}

func (x executor) rebuild(ctx context.Context, server domain.Server) error {
	image, err := x.imageFor(server)
	if err != nil {
		return err
	}
	r, err := x.Deployment.Prepare(ctx)
	if err != nil {
		return err
	}
	r.ImageID, r.Metadata = image, server.Marked(r.ID)
	return x.cloud.RebuildServer(ctx, server.ID, r, server.Image == nil)
}

// imageFor is the image that the server is rebuilt from, if the connection allows it.
func (x executor) imageFor(server domain.Server) (string, error) {
	image := x.Deployment.ImageID
	if image == "" && server.Image == nil {
		return "", apperr.InvalidField("server_image",
			"must be the id of an image, because the server boots from a volume")
	}
	if image == "" {
		image = server.Image.ID
	}
	return image, x.Limits.CheckImage("server_image", image)
}
