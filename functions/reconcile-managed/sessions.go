package reconcilemanaged

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

const sessionTTL = 30 * time.Minute // before the shortest tokens that Keystone gives by default end

// sessions opens the trusts of managed resources. It implements managed.Sessions.
type sessions struct {
	trusts      *delegation.Sessions[*openstack.Session]
	connections postgres.Connections
	wake        func(functions ...string)
}

func newSessions(own *openstack.Account, db *postgres.DB, wake func(functions ...string)) sessions {
	login := func(ctx context.Context) (delegation.Account[*openstack.Session], error) { return own.Login(ctx) }
	return sessions{delegation.NewSessions(login, sessionTTL), postgres.Connections{DB: db}, wake}
}

// Open opens a session in a region.
func (s sessions) Open(ctx context.Context, c domain.Connection, region string) (managed.Session, error) {
	in, err := s.trusts.Open(ctx, c, nil)
	if lost, ok := errors.AsType[*delegation.LostError](err); ok {
		reason := "Keystone does not accept the trust any more: its user is disabled, or has lost one of the roles " +
			strings.Join(c.ActsAs.Roles, ", ") + " in the project"
		if lost.IsAbsent {
			reason = "Keystone does not have the trust any more: it was deleted, or its user was"
		}
		err = apperr.Wrap(apperr.DelegationLost, err, "%s; declare the resource again", reason)
	}
	if err != nil {
		return managed.Session{}, err
	}
	if region != "" {
		in = in.InRegion(region)
	}
	return managed.Session{
		Cloud: in, ProjectID: c.ProjectID, DomainID: c.DomainID, UserID: c.UserID, Region: region,
	}, nil
}

// Forget drops the session of a connection.
func (s sessions) Forget(connection uuid.UUID) { s.trusts.Forget(connection) }

// Lose records that Keystone does not accept a trust any more, so that the next declaration makes another one. A
// connection that has got another trust since stays.
func (s sessions) Lose(ctx context.Context, c domain.Connection) {
	ending, cancel := domain.Detached(ctx)
	defer cancel()
	if _, err := s.connections.Lose(ending, c, domain.LostReason(c.Kind), false); err != nil {
		slog.WarnContext(ctx, "lost connection not recorded", "connection_id", c.ID, "error", err)
	}
	s.wake("run-connections")
}
