package leases

import (
	"context"
	"log/slog"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// shelve shelves a server of the reservation. Its flavor fits reserved hosts only, and a shelved server keeps its
// flavor, so nobody could unshelve it. So it is stopped and resized to the flavor's base first, which moves it to an
// ordinary host. A tag marks it, because nothing else tells then that it was the reservation's.
func (s hostStep) shelve(ctx context.Context, server domain.Server) error {
	base, isPrivate := s.base(server)
	isReady, err := s.prepareEnd(ctx, server)
	switch {
	case !isReady || err != nil || server.Task != "":
		return err
	case isPrivate && server.Status == "ACTIVE":
		return s.cloud.StopServer(ctx, server.ID)
	case isPrivate && server.Status == "SHUTOFF":
		isMoving, err := s.move(ctx, server, base)
		if isMoving || err != nil {
			return err
		}
	}
	_, err = s.act(ctx, server, domain.Shelve)
	return err
}

// base is the flavor that the server's private one is a copy of. isPrivate reports whether it has one of the
// reservation.
func (s hostStep) base(server domain.Server) (id string, isPrivate bool) {
	for _, f := range s.r.Flavors {
		if f.Name == server.Flavor.Name {
			return f.BaseID, true
		}
	}
	return "", false
}

// move begins to resize a stopped server to the base of its flavor. isMoving is false when Nova cannot do that, such as
// without room on the other hosts, or when the base is gone: then the server is shelved as it is.
func (s hostStep) move(ctx context.Context, server domain.Server, base string) (isMoving bool, err error) {
	tag := AggregateName(s.r.ID)
	if slices.Contains(server.Tags, tag) {
		mayMove, err := s.mayMove(ctx, server.ID)
		switch {
		case err != nil:
			return false, err
		case !mayMove:
			return false, s.saveRemark(ctx, server, keepsFlavor)
		}
	} else if err = s.cloud.TagServer(ctx, server.ID, tag); err != nil {
		return false, err
	}
	err = s.cloud.ResizeServer(ctx, server.ID, base)
	switch apperr.CodeOf(err) {
	case apperr.Invalid, apperr.NotFound, apperr.Forbidden, apperr.Conflict:
		slog.WarnContext(ctx, "a server keeps the flavor of a reservation", "lease_id", s.lease.ID,
			"reservation_id", s.r.ID, "server_id", server.ID, "error", err)
		return false, s.saveRemark(ctx, server, keepsFlavor)
	}
	return true, err
}

const keepsFlavor = "Nova could not move it off the reserved host: it keeps the lease's flavor, and cannot be unshelved"

// mayMove reports whether Nova has not failed to resize the server yet.
func (s hostStep) mayMove(ctx context.Context, id string) (bool, error) {
	log, err := s.cloud.Actions(ctx, id)
	hasFailed := slices.ContainsFunc(log, func(a domain.LoggedAction) bool { return a.Name == "resize" && a.Failed })
	return !hasFailed, err
}

// shelveMoved shelves the servers that have left the reservation's hosts on the way. isDone reports that none is left.
func (s hostStep) shelveMoved(ctx context.Context) (isDone bool, err error) {
	if s.lease.OnEnd != domain.OnEndShelve {
		return true, nil
	}
	servers, err := s.cloud.TaggedServers(ctx, s.lease.ProjectID, AggregateName(s.r.ID))
	if err != nil {
		return false, err
	}
	isDone = true
	for _, server := range servers {
		// Nova gives a server its new host first, and then its new flavor: meanwhile it has a task. Without a task it
		// is on a host of the reservation that is down.
		_, isPrivate := s.base(server)
		if isPrivate && server.Task == "" || server.Status == "SHELVED_OFFLOADED" || server.Partial {
			continue
		}
		if err := s.shelve(ctx, server); err != nil {
			return false, s.notEnded(ctx, server, err)
		}
		isDone = false
	}
	s.isMoving = s.isMoving || !isDone
	return isDone, nil
}
