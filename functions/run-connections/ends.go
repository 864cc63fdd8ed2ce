package runconnections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// ends ends connections whose time is over, and takes back the trusts of those that have ended.
func (s *service) ends(ctx context.Context, b *batch) error {
	over, err := s.delegations.Ending(ctx, listed)
	if err != nil {
		return err
	}
	for _, connection := range over {
		if connection.Status == domain.ConnectionActive {
			if err := s.expire(ctx, connection); err != nil {
				return err
			}
		}
		if connection.Kind == domain.TrustConnection {
			b.begin("ending/"+connection.ID.String(), "connections", cloudOf(connection), connectionsAtOnce, func() { s.revoke(ctx, connection) })
		}
	}
	return nil
}

// expire ends a connection whose time is over.
func (s *service) expire(ctx context.Context, c domain.Connection) error {
	reason := "its time is over"
	if c.EndsAt().Before(c.ExpiresAt) {
		reason = fmt.Sprintf("it was not used for %s", c.IdleTimeout)
	}
	ended, err := s.connections.End(ctx, c.ProjectID, c.ID, domain.ConnectionExpired, reason, c.Kind != domain.TrustConnection)
	if ended {
		slog.InfoContext(ctx, "a connection has ended", "connection_id", c.ID, "reason", reason)
		s.wake("deliver-events")
	}
	return err
}

// revoke takes a trust back, with a token that is made of it. When Keystone refuses that, the trust is gone.
func (s *service) revoke(ctx context.Context, c domain.Connection) {
	err := s.cloud.use(ctx, c, func(in session) error { return in.DeleteTrust(ctx, c.DelegationID) })
	s.cloud.forget(c.ID)
	ctx, cancel := ending(ctx)
	defer cancel()
	if err != nil && !errors.Is(err, errLost) {
		slog.WarnContext(ctx, "a trust is still to be taken back", "connection_id", c.ID, "error", err)
		err = s.silent(ctx, c)
	} else {
		err = s.delegations.Revoked(ctx, c.ProjectID, c.ID)
	}
	if err != nil {
		slog.WarnContext(ctx, "connection not noted", "connection_id", c.ID, "error", err)
	}
}
