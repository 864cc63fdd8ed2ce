package actions

import (
	"context"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Nova deletes a server's ports some seconds after it. Ports that are left after this time are not Nova's.
const portsPatience = 3 * time.Minute

// followDelete has Nova delete the server, again if need be, until it and its ports are deleted.
func (x executor) followDelete(
	ctx context.Context, server domain.Server, state domain.InstanceState,
) (Progress, error) {
	switch {
	// Nova may be configured to keep it for a while
	case state == domain.InstanceDeleted, server.Status == "SOFT_DELETED":
		x.recordSeen(ctx, domain.Server{ID: x.ServerID, Status: "DELETED", Partial: true})
		return Progress{State: domain.InstanceDeleted, Done: x.portsAreGone(ctx)}, nil
	case state == domain.InstanceError && server.Fault != nil && x.hasTriedSince(server.Fault.Created):
		x.recordSeen(ctx, server)
		return Progress{}, faultOf(server) // Nova has tried and failed: another call would not help
	case state == domain.InstanceDeleting:
		blocked := apperr.New(apperr.Conflict, "Nova has not deleted the server for %s", patience)
		return Progress{State: state, Blocked: blocked}, nil
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

// hasTriedSince reports whether Nova was called for this deletion, and the moment is after its request: a fault of then
// is Nova's answer to the call. Without a call it is somebody else's fault, such as a rebuild's.
func (x executor) hasTriedSince(moment time.Time) bool {
	i, requested := x.Instance, x.Follow.RequestedAt
	return i.DeleteTries > 0 && !i.DeleteTriedAt.Before(requested) && moment.After(requested)
}

// PauseError says that an action continues after a pause.
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
		"Nova was asked %d times to delete the server %s (%s), which is still there, in the status %s%s",
		i.DeleteTries, server.ID, server.Name, server.Status, why)
}

// portsAreGone reports whether the deleted server's ports are deleted too, or it is too late to wait for that.
func (x executor) portsAreGone(ctx context.Context) bool {
	left, err := x.cloud.Ports(ctx, x.ServerID)
	if err == nil && left == 0 {
		return true
	}
	if x.Follow.Waiting <= portsPatience {
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
