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

	readAt time.Time // by the database's clock, before Nova is asked; zero for a server that is not tracked
}

// setReadAt notes the time before the server is read. What others have seen since is newer than what this step records.
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
	case x.Idle(state, server.Task):
		return Progress{State: state, Done: true}, nil
	case x.Action.Action == domain.Reboot && x.Follow != nil:
		return x.followReboot(ctx, server, state)
	}
	return x.apply(ctx, server, state)
}

// followReboot reboots the server once: Nova may have accepted the call before, with its answer lost. A soft reboot in
// progress does not stand for a hard one.
func (x executor) followReboot(
	ctx context.Context, server domain.Server, state domain.InstanceState,
) (Progress, error) {
	if x.Hard && server.Status == "REBOOT" {
		return x.apply(ctx, server, state)
	}
	switch wasRebooted, err := WasRebooted(ctx, x.cloud, server.ID, x.Follow.RequestedAt); {
	case err != nil:
		return Progress{}, err
	case wasRebooted:
		x.recordSeen(ctx, server)
		return Progress{State: state, Done: true}, nil
	}
	return x.apply(ctx, server, state)
}

// apply calls Nova if the server's state allows it. Only a deletion that is followed continues after that.
func (x executor) apply(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	if err := x.Check(state); err != nil {
		return x.notAllowed(state, err)
	}
	if x.Instance.ID != uuid.Nil && !x.MayDelete(x.Instance.Origin) {
		return Progress{}, ErrNeedsForce
	}
	if err := x.setCalledAt(ctx); err != nil {
		return Progress{}, err
	}
	if err := x.callNova(ctx, server, state); err != nil {
		return Progress{}, err
	}
	x.recordAccepted(ctx, server, state)
	isDone := x.Follow == nil || x.Action.Action != domain.Delete
	return Progress{State: x.After(state), Accepted: true, Done: isDone}, nil
}

// notAllowed blocks the action while Nova is working on the server, and fails it in other states.
func (x executor) notAllowed(state domain.InstanceState, err error) (Progress, error) {
	if slices.Contains(domain.MovingStates(), state) {
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

// callNova makes the call for a server in the state.
func (x executor) callNova(ctx context.Context, server domain.Server, state domain.InstanceState) error {
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
	}
	return x.start(ctx, server.ID, state)
}

// clockSkew is how far the database's clock and Nova's may differ.
const clockSkew = 5 * time.Second

// WasRebooted reads in Nova's action log whether it has accepted a reboot since the moment.
func WasRebooted(ctx context.Context, cloud Cloud, id string, since time.Time) (bool, error) {
	logged, err := cloud.Actions(ctx, id)
	return slices.ContainsFunc(logged, func(l domain.LoggedAction) bool {
		return l.Name == "reboot" && l.Start.After(since.Add(-clockSkew))
	}), err
}

func (x executor) start(ctx context.Context, id string, state domain.InstanceState) error {
	if state == domain.InstanceShelved {
		return x.cloud.UnshelveServer(ctx, id)
	}
	return x.cloud.StartServer(ctx, id)
}

// recordAccepted stores the state that follows from the call in a state.
func (x executor) recordAccepted(ctx context.Context, server domain.Server, state domain.InstanceState) {
	i := x.Instance
	i.Seen(server)
	i.State, i.Problem = x.After(state), nil
	x.record(domain.WithActor(ctx, x.Actor.Doing(x.Action.Action, x.ID)), i)
}

// recordSeen stores the server as Nova shows it.
func (x executor) recordSeen(ctx context.Context, server domain.Server) {
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
