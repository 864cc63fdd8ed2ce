package runconnections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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
	isOver, cause := s.tryRevokeOld(ctx, t)
	if cause != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // this process ends
	}
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if cause != nil && !errors.Is(cause, errLost) && s.trustIsOver(ctx, t.ExpiresAt) {
		isOver = true
	}
	var notified bool
	var err error
	if isOver {
		notified, err = s.delegations.MarkTrustGone(ctx, t)
	} else {
		notified, err = s.delegations.MarkTrustPending(ctx, t, pendingReason(cause), firstPause, longestRevocationPause)
		if notified {
			slog.WarnContext(ctx, "a replaced trust cannot be deleted in Keystone, and is retried until it is gone",
				"connection_id", t.ConnectionID, "project_id", t.ProjectID, "trust_expires_at", t.ExpiresAt,
				"error", cause)
		}
	}
	if err != nil {
		slog.WarnContext(ctx, "the revocation of a trust is not recorded", "connection_id", t.ConnectionID,
			"error", err)
	}
	if notified {
		s.wake("deliver-events")
	}
}

// tryRevokeOld reports whether nothing is left to revoke; otherwise cause says why.
func (s *service) tryRevokeOld(ctx context.Context, t domain.OldTrust) (isOver bool, cause error) {
	isOurs, err := s.delegations.AdoptTrust(ctx, t)
	if err != nil || !isOurs {
		return err == nil, err
	}
	if t.TrustID != "" {
		err = s.cloud.revoke(ctx, t.TrustID)
		return err == nil, err
	}
	found, err := s.cloud.findTrusts(ctx, t) // its announcer has died, or could not record the result
	if err != nil {
		return false, err
	}
	for _, id := range found {
		t.TrustID = id
		if isOurs, err = s.delegations.AdoptTrust(ctx, t); err == nil && isOurs { // else a connection has it
			err = s.cloud.revoke(ctx, id)
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// findTrusts looks for a trust by its end, when its id is not known.
func (s *sessions) findTrusts(ctx context.Context, t domain.OldTrust) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	own, err := s.account(ctx, nil)
	if err != nil {
		return nil, err
	}
	ids, err = own.FindTrusts(ctx, t.UserID, t.ProjectID, t.ExpiresAt)
	if !refused(err) {
		return ids, err
	}
	if own, err = s.account(ctx, own); err != nil { // the account's token has expired
		return nil, err
	}
	return own.FindTrusts(ctx, t.UserID, t.ProjectID, t.ExpiresAt)
}

// revoke deletes a trust in Keystone. nil means that Keystone no longer has it; errLost that nobody can delete it now.
// Only its user can, also by a token of the trust. For that the user must be enabled and have the role.
func (s *sessions) revoke(ctx context.Context, trust string) error {
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	own, err := s.account(ctx, nil)
	if err != nil {
		return err
	}
	known := own.CheckTrust(ctx, trust)
	if apperr.CodeOf(known) == apperr.Unauthenticated { // the account's token has expired
		if own, err = s.account(ctx, own); err != nil {
			return err
		}
		known = own.CheckTrust(ctx, trust)
	}
	switch apperr.CodeOf(known) {
	case "":
	case apperr.NotFound:
		return nil
	case apperr.Forbidden:
		return apperr.Wrap(apperr.Internal, known,
			"the service account is not the trustee, or does not log in with a password")
	default:
		return known
	}
	in, err := own.WithTrust(ctx, trust)
	if err == nil {
		err = in.DeleteTrust(ctx, trust)
	}
	if refused(err) {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return err
}
