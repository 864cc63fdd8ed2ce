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
}

// run does what is next, given the server as it is now.
func (x executor) run(ctx context.Context, server domain.Server) (Progress, error) {
	state := domain.StateOf(server.Status, server.Task)
	if x.Follow != nil && x.Action.Action != domain.Delete && server.Status == "DELETED" { // Nova shows it for a moment more
		return Progress{}, apperr.New(apperr.NotFound, "the server %s is deleted", server.ID)
	}
	switch {
	case x.Action.Action == domain.Deploy:
		return x.deploy(ctx, server, state)
	case x.Action.Action == domain.Delete && x.Follow != nil:
		return x.followDelete(ctx, server, state)
	case x.Idle(state, server.Task):
		return Progress{State: state, Done: true}, nil
	}
	return x.apply(ctx, server, state)
}

// apply calls Nova if the server's state allows it. Of all that is not followed, and of what has no end to wait for,
// that is the end.
func (x executor) apply(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	if err := x.Check(state); err != nil {
		return x.notAllowed(state, err)
	}
	if x.Instance.ID != uuid.Nil && !x.MayDelete(x.Instance.Origin) {
		return Progress{}, ErrNotOurs
	}
	if err := x.callNova(ctx, server, state); err != nil {
		return Progress{}, err
	}
	x.recordAccepted(ctx, server)
	return Progress{State: x.After(), Accepted: true, Done: x.Follow == nil || x.Action.Action != domain.Delete}, nil
}

// notAllowed is an error, unless Nova soon ends the state by itself.
func (x executor) notAllowed(state domain.InstanceState, err error) (Progress, error) {
	if slices.Contains(domain.MovingStates(), state) {
		return Progress{State: state, Blocked: err}, nil
	}
	return Progress{}, err
}

// MayDelete says whether the action is no deletion, or one of a server that we have made, or forced.
func (a Action) MayDelete(origin string) bool {
	return a.Action != domain.Delete || a.Force || origin != domain.OriginConnected
}

// ErrNotOurs refuses to delete a server that was connected.
var ErrNotOurs = &apperr.Error{
	Code:    apperr.Conflict,
	Message: "the server was there before it was connected: disconnect it, or delete it with force",
	Fields:  []apperr.Field{{Field: "force", Detail: "must be true to delete a server that was connected", Allowed: []string{"true"}}},
}

// callNova makes the one call that the action takes for a server in the state.
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
	}
	return x.start(ctx, server.ID, state)
}

func (x executor) start(ctx context.Context, id string, state domain.InstanceState) error {
	if state == domain.InstanceShelved {
		return x.cloud.UnshelveServer(ctx, id)
	}
	return x.cloud.StartServer(ctx, id)
}

// recordAccepted writes at once what follows from Nova's yes.
func (x executor) recordAccepted(ctx context.Context, server domain.Server) {
	i := x.Instance
	i.Seen(server)
	i.State, i.Problem = x.After(), nil
	x.record(domain.WithActor(ctx, x.Actor.Doing(x.Action.Action, x.ID)), i)
}

// recordSeen writes what Nova shows.
func (x executor) recordSeen(ctx context.Context, server domain.Server) {
	if i := x.Instance; i.Found(server) {
		x.record(ctx, i)
	}
}

// record writes a tracked instance, also when the caller hangs up. On failure the next poll records it; the action
// itself has succeeded.
func (x executor) record(ctx context.Context, i domain.Instance) {
	if i.ID == uuid.Nil {
		return
	}
	i.SeenAt = time.Time{} // now
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	if _, err := x.Instances.Change(writing, []domain.Instance{i}); err != nil {
		slog.WarnContext(ctx, "an action is not recorded; the next poll records it", "instance_id", i.ID, "error", err)
	}
}
