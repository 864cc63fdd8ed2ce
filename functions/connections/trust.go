package connections

import (
	"context"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// createByTrust creates a trust with the caller's own token, and stores the connection.
func (s service) createByTrust(
	ctx context.Context, who domain.Identity, token domain.Secret, d draft,
) (stored domain.Connection, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	if d.Flavors, err = cloud.Flavors(ctx); err != nil {
		return stored, err
	}
	if err := checkLimits(d, s.cloud.Region()); err != nil {
		return stored, err
	}
	d.ActsAs = domain.ActsAs{
		UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID,
		ProjectName: who.ProjectName, Roles: d.roles,
	}
	if err := s.trusts.Create(ctx, who, cloud, &d.Connection); err != nil {
		return stored, err
	}
	if stored, err = s.insert(ctx, d); err == nil {
		return stored, nil
	}
	return s.afterFailure(ctx, who, cloud, d, err)
}

// afterFailure handles the error of storing a connection. Postgres may have stored it although its answer was lost.
// While that is unknown the trust stays; run-connections revokes it if no connection has it.
func (s service) afterFailure(
	ctx context.Context, who domain.Identity, cloud session, d draft, cause error,
) (domain.Connection, error) {
	isOpen, released := apperr.Retryable(cause), false
	if d.grant != nil {
		var err error
		if released, err = s.releaseGrant(ctx, d); err != nil { // it waits for a transaction that still runs
			slog.WarnContext(ctx, "run-connections has to check a trust", "connection_id", d.ID, "error", err)
			return domain.Connection{}, cause
		}
		isOpen = !released
	}
	if isOpen {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), delegation.CleanTimeout)
		defer cancel()
		stored, err := s.store.Get(ctx, who, d.ID)
		if err == nil {
			s.wake("deliver-events")
			return stored, nil
		}
		if apperr.CodeOf(err) != apperr.NotFound {
			return domain.Connection{}, cause
		}
	}
	if released {
		s.trusts.Abandon(ctx, cloud, d.Connection)
	} else {
		s.trusts.Discard(ctx, cloud, d.Connection, cause)
	}
	return domain.Connection{}, cause
}
