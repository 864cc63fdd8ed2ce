package actions

import (
	"context"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Ports go with their server, some seconds later. What is left of them after this time is not Nova's.
const portsPatience = 3 * time.Minute

// followDelete calls Nova to delete the server until nothing is left of it.
func (x executor) followDelete(ctx context.Context, server domain.Server, state domain.InstanceState) (Progress, error) {
	switch {
	case state == domain.InstanceDeleted, server.Status == "SOFT_DELETED": // the latter is kept for a while by Nova's own will
		x.recordSeen(ctx, domain.Server{ID: x.ServerID, Status: "DELETED", Partial: true})
		return Progress{State: domain.InstanceDeleted, Done: x.portsAreGone(ctx)}, nil
	case state == domain.InstanceError && server.Fault != nil && server.Fault.Created.After(x.Follow.RequestedAt):
		x.recordSeen(ctx, server)
		return Progress{}, faultOf(server) // Nova has tried since it was asked to: another call would not help it
	case state == domain.InstanceDeleting:
		return Progress{State: state, Blocked: apperr.New(apperr.Conflict, "Nova has not deleted the server for %s", patience)}, nil
	case x.Check(state) != nil:
		return x.notAllowed(state, x.Check(state))
	}
	at, exhausted := x.Instance.NextDelete(x.Follow.RequestedAt)
	if x.Follow.Now.Before(at) {
		return Progress{}, PauseError{at.Sub(x.Follow.Now)}
	}
	if exhausted {
		x.recordSeen(ctx, server)
		return Progress{}, undeletable(x.Instance, server)
	}
	return x.apply(ctx, server, state)
}

// PauseError says that an action goes on after a pause.
type PauseError struct{ Pause time.Duration }

// Error implements error.
func (e PauseError) Error() string { return "goes on in " + e.Pause.String() }

// undeletable says that Nova was called often enough to delete the server.
func undeletable(i domain.Instance, server domain.Server) error {
	why := ""
	if server.Fault != nil {
		why = ": " + server.Fault.Message
	}
	return apperr.New(apperr.Conflict, "Nova was asked %d times to delete the server %s (%s), which is still there, in the status %s%s",
		i.DeleteTries, server.ID, server.Name, server.Status, why)
}

// portsAreGone says whether the deleted server's ports are gone, too, or are waited for no longer.
func (x executor) portsAreGone(ctx context.Context) bool {
	left, err := x.cloud.Ports(ctx, x.ServerID)
	if err == nil && left == 0 {
		return true
	}
	if x.Follow.Waiting <= portsPatience {
		return false
	}
	slog.WarnContext(ctx, "a server is deleted, and its ports may not be", "instance_id", x.Instance.ID, "server_id", x.ServerID,
		"ports", left, "error", err)
	return true
}

// faultOf is why Nova could not rebuild or delete a server.
func faultOf(server domain.Server) error {
	if server.Fault == nil {
		return apperr.New(apperr.Conflict, "the server is in ERROR")
	}
	return apperr.New(apperr.Conflict, "the server is in ERROR: %s", server.Fault.Message)
}
