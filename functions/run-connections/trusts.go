package runconnections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/delegation"
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
	reason := "it has expired"
	if c.EndsAt().Before(c.ExpiresAt) {
		reason = fmt.Sprintf("it was not used for %s", c.IdleTimeout)
	}
	ended, err := s.connections.Expire(ctx, c, reason, c.Kind != domain.TrustConnection)
	if ended {
		slog.InfoContext(ctx, "connection ended", "connection_id", c.ID, "reason", reason)
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
	cause := s.cloud.Revoke(ctx, c.DelegationID)
	s.cloud.Forget(c.ID)
	if cause != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // this process ends
	}
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if cause != nil && !delegation.IsLost(cause) && s.hasExpired(ctx, c.TrustExpiresAt) {
		cause = nil
	}
	notified, err := s.recordRevocation(ctx, c, cause)
	if err != nil {
		slog.WarnContext(ctx, "revocation of trust not recorded", "connection_id", c.ID, "error", err)
	}
	if notified {
		s.wake("deliver-events")
	}
}

// hasExpired reports whether a trust has expired, for when Keystone is unavailable.
func (s *service) hasExpired(ctx context.Context, end time.Time) bool {
	now, err := s.db.Now(ctx)
	return err == nil && now.After(end.Add(clockSkew))
}

// recordRevocation records that the trust is deleted; with a cause, that its revocation is pending.
func (s *service) recordRevocation(ctx context.Context, c domain.Connection, cause error) (notified bool, err error) {
	if cause == nil {
		if notified, err = s.delegations.MarkRevoked(ctx, c); notified {
			slog.InfoContext(ctx, "trust that could not be deleted no longer exists", "connection_id", c.ID)
		}
		return notified, err
	}
	notified, err = s.delegations.MarkRevocationPending(ctx, c, pendingReason(cause), firstPause,
		longestRevocationPause)
	if notified {
		slog.WarnContext(ctx, "trust not deleted in Keystone; retried until it is",
			"connection_id", c.ID, "project_id", c.ProjectID, "trust_expires_at", c.TrustExpiresAt, "error", cause)
	}
	return notified, err
}

// pendingReason says why a trust could not be deleted.
func pendingReason(cause error) string {
	if delegation.IsLost(cause) {
		return "Keystone does not let the trust be deleted while its user is disabled or lacks the delegated role: " +
			"delete it by hand, or cloudfn does when they are back"
	}
	return "Keystone could not be reached to delete the trust: cloudfn retries"
}

// reportPending shows the operator how many trusts Keystone did not let us delete.
func (s *service) reportPending(ctx context.Context) error {
	n, err := s.delegations.PendingRevocations(ctx)
	if err == nil {
		s.pending(ctx, n)
	}
	return err
}

// oldTrusts revokes the trusts that no connection has: those that were replaced, and those made for a connection that
// was never stored.
func (s *service) oldTrusts(ctx context.Context, b *batch) error {
	due, err := s.delegations.OldTrusts(ctx, listed)
	if err != nil {
		return err
	}
	for _, t := range due {
		b.begin("trust/"+t.ID.String(), "connections", domain.RemoteCloud{}, func() { s.revokeOld(ctx, t) })
	}
	return nil
}

// revokeOld revokes one of them.
func (s *service) revokeOld(ctx context.Context, t domain.OldTrust) {
	isRevoked, cause := s.tryRevokeOld(ctx, t)
	if cause != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // this process ends
	}
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if cause != nil && !delegation.IsLost(cause) && s.hasExpired(ctx, t.ExpiresAt) {
		isRevoked = true
	}
	var notified bool
	var err error
	if isRevoked {
		notified, err = s.delegations.MarkTrustGone(ctx, t)
	} else {
		notified, err = s.delegations.MarkTrustPending(ctx, t, pendingReason(cause), firstPause, longestRevocationPause)
		if notified {
			slog.WarnContext(ctx, "replaced trust not deleted in Keystone; retried until it is",
				"connection_id", t.ConnectionID, "project_id", t.ProjectID, "trust_expires_at", t.ExpiresAt,
				"error", cause)
		}
	}
	if err != nil {
		slog.WarnContext(ctx, "revocation of trust not recorded", "connection_id", t.ConnectionID,
			"error", err)
	}
	if notified {
		s.wake("deliver-events")
	}
}

// tryRevokeOld reports whether nothing is left to revoke; otherwise cause says why.
func (s *service) tryRevokeOld(ctx context.Context, t domain.OldTrust) (isRevoked bool, cause error) {
	isOurs, err := s.delegations.AdoptTrust(ctx, t)
	if err != nil || !isOurs {
		return err == nil, err
	}
	if t.TrustID != "" {
		err = s.cloud.Revoke(ctx, t.TrustID)
		return err == nil, err
	}
	found, err := s.cloud.FindTrusts(ctx, t) // its announcer has died, or could not record the result
	if err != nil {
		return false, err
	}
	for _, id := range found {
		t.TrustID = id
		if isOurs, err = s.delegations.AdoptTrust(ctx, t); err == nil && isOurs { // else a connection has it
			err = s.cloud.Revoke(ctx, id)
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}
