package runconnections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// ends ends connections that expire, and revokes the trusts of those that have ended.
func (s *service) ends(ctx context.Context, b *batch, _ time.Time) error {
	over, err := s.delegations.Ending(ctx, listed)
	if err != nil {
		return err
	}
	for _, connection := range over {
		if connection.Status.IsOpen() {
			if err := s.expire(ctx, connection); err != nil {
				return err
			}
		}
		if connection.Kind == domain.TrustConnection {
			b.begin("ending/"+connection.ID.String(), "connections", cloudOf(connection),
				func() { s.revoke(ctx, connection) })
		}
	}
	return s.oldTrusts(ctx, b)
}

// expire ends a connection that has expired or was idle for too long.
func (s *service) expire(ctx context.Context, c domain.Connection) error {
	reason := "its time is over"
	if c.EndsAt().Before(c.ExpiresAt) {
		reason = fmt.Sprintf("it was not used for %s", c.IdleTimeout)
	}
	ended, err := s.connections.Expire(ctx, c, reason, c.Kind != domain.TrustConnection)
	if ended {
		slog.InfoContext(ctx, "a connection has ended", "connection_id", c.ID, "reason", reason)
		s.wakeOfEnd(c)
	}
	return err
}

const (
	// A trust that Keystone does not let us delete is tried after pauses that grow from firstPause to this.
	longestRevocationPause = 15 * time.Minute
	// clockSkew is how far Keystone's clock and the database's may be apart.
	clockSkew = 5 * time.Minute
)

// revoke deletes a trust. Keystone may not allow that, for example while the trust's user is disabled or lacks the
// role. Then the trust stays on the list, and its owner and the operator are notified once.
func (s *service) revoke(ctx context.Context, c domain.Connection) {
	cause := s.cloud.revoke(ctx, c.DelegationID)
	s.cloud.forget(c.ID)
	if cause != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // this process ends
	}
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if cause != nil && !errors.Is(cause, errLost) && s.trustIsOver(ctx, c.TrustExpiresAt) {
		cause = nil
	}
	notified, err := s.recordRevocation(ctx, c, cause)
	if err != nil {
		slog.WarnContext(ctx, "the revocation of a trust is not recorded", "connection_id", c.ID, "error", err)
	}
	if notified {
		s.wake("deliver-events")
	}
}

// trustIsOver reports whether the trust has expired, for when Keystone is away.
func (s *service) trustIsOver(ctx context.Context, end time.Time) bool {
	now, err := s.db.Now(ctx)
	return err == nil && now.After(end.Add(clockSkew))
}

// recordRevocation records that the trust is deleted; with a cause, that its revocation is pending.
func (s *service) recordRevocation(ctx context.Context, c domain.Connection, cause error) (notified bool, err error) {
	if cause == nil {
		if notified, err = s.delegations.MarkRevoked(ctx, c); notified {
			slog.InfoContext(ctx, "a trust that could not be deleted is gone from Keystone", "connection_id", c.ID)
		}
		return notified, err
	}
	notified, err = s.delegations.MarkRevocationPending(ctx, c, pendingReason(cause), firstPause,
		longestRevocationPause)
	if notified {
		slog.WarnContext(ctx, "a trust cannot be deleted in Keystone, and is retried until it is gone",
			"connection_id", c.ID, "project_id", c.ProjectID, "trust_expires_at", c.TrustExpiresAt, "error", cause)
	}
	return notified, err
}

// pendingReason says why a trust could not be deleted.
func pendingReason(cause error) string {
	if errors.Is(cause, errLost) {
		return "Keystone does not let the trust be deleted while its user is disabled or lacks the delegated role: " +
			"delete it by hand, or cloudfn does when they are back"
	}
	return "Keystone could not be asked to delete the trust: cloudfn retries"
}

// reportPending shows the operator how many trusts Keystone did not let us delete.
func (s *service) reportPending(ctx context.Context) error {
	n, err := s.delegations.PendingRevocations(ctx)
	if err == nil {
		s.pending(ctx, n)
	}
	return err
}
