package connections

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// trustStore keeps the trusts that are about to be made: run-connections finds and deletes one whose maker dies before it is stored.
type trustStore interface {
	Begin(context.Context, domain.TrustIntent) (free bool, err error)
	Drop(ctx context.Context, projectID string, id uuid.UUID) error
}

// trust makes a trust with the caller's own token.
func (s service) trust(ctx context.Context, who domain.Identity, token domain.Secret, w wish) (stored domain.Connection, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	if w.Flavors, err = cloud.Flavors(ctx); err != nil {
		return stored, err
	}
	w.ActsAs = domain.ActsAs{UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID, ProjectName: who.ProjectName, Roles: w.roles}
	made, err := cloud.CreateTrust(ctx, who, s.trustee, w.roles, w.ExpiresAt.Add(domain.TrustSpare), func(ctx context.Context, end time.Time) (bool, error) {
		return s.trusts.Begin(ctx, domain.TrustIntent{ID: w.ID, ProjectID: w.ProjectID, UserID: w.UserID, EndsAt: end})
	})
	if err != nil {
		if hasRefused(err) {
			s.dropIntent(ctx, w.Connection)
		}
		return stored, s.badTrustee(err)
	}
	w.DelegationID, w.TrustExpiresAt = made.ID, made.ExpiresAt
	if stored, err = s.keep(ctx, w); err == nil {
		return stored, nil
	}
	if w.grant != nil {
		return s.notGranted(ctx, who, cloud, w, err)
	}
	s.giveUp(ctx, cloud, w.Connection)
	return stored, err
}

// hasRefused says whether Keystone has surely made no trust. After any other failure run-connections looks.
func hasRefused(err error) bool {
	switch apperr.CodeOf(err) {
	case apperr.Invalid, apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound, apperr.Conflict:
		return true
	}
	return false
}

// dropIntent forgets the intent of a trust that Keystone does not have. On failure run-connections looks for the trust, and finds none.
func (s service) dropIntent(ctx context.Context, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if err := s.trusts.Drop(ctx, c.ProjectID, c.ID); err != nil {
		slog.WarnContext(ctx, "the intent of a trust is left to run-connections", "connection_id", c.ID, "error", err)
	}
}

// badTrustee says when Keystone does not know the user to whom trusts are made: the operator's mistake, not the caller's.
func (s service) badTrustee(err error) error {
	if e := apperr.As(err); e.Code != apperr.NotFound || !strings.Contains(e.Message, s.trustee) {
		return err
	}
	slog.Error("TRUSTEE_USER_ID is the id of no user: set it to what `cloudfnd trustee` prints", "trustee", s.trustee)
	return apperr.Wrap(apperr.Unsupported, err, "no trusts can be made here, because TRUSTEE_USER_ID is the id of no user: hand over an application credential")
}

// giveUp takes back a trust whose connection could not be stored. If it was stored after all, it ends.
func (s service) giveUp(ctx context.Context, cloud session, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	err := cloud.DeleteTrust(ctx, c.DelegationID)
	ended, endErr := s.End(ctx, c.ProjectID, c.ID, domain.ConnectionDeleted, "it could not be stored", err == nil)
	slog.WarnContext(ctx, "a connection could not be stored", "connection_id", c.ID, "taking_the_trust_back", err, "was_stored", ended, "ending_it", endErr)
	if err == nil {
		s.dropIntent(ctx, c)
	}
}

// keep stores a connection, with the request that it was made for.
func (s service) keep(ctx context.Context, w wish) (stored domain.Connection, err error) {
	if w.grant == nil {
		stored, err = s.store.Create(ctx, w.Connection)
	} else {
		stored, err = s.CreateGranted(ctx, w.Connection, *w.grant)
	}
	if err == nil {
		s.wake("deliver-events")
	}
	return stored, err
}
