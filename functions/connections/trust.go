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

// trust makes a trust with the caller's own token.
func (s service) trust(ctx context.Context, who domain.Identity, token domain.Secret, w wish) (stored domain.Connection, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	if w.Flavors, err = cloud.Flavors(ctx); err != nil {
		return stored, err
	}
	if err := checkLimits(w, s.cloud.Region()); err != nil {
		return stored, err
	}
	w.ActsAs = domain.ActsAs{UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID, ProjectName: who.ProjectName, Roles: w.roles}
	if err := s.makeTrust(ctx, who, cloud, &w.Connection); err != nil {
		return stored, err
	}
	if stored, err = s.keep(ctx, w); err == nil {
		return stored, nil
	}
	if w.grant != nil {
		return s.notGranted(ctx, who, cloud, w, err)
	}
	s.giveUp(ctx, cloud, w.Connection)
	return stored, err
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

// makeTrust makes a trust for the connection, with the roles that this acts with. It is announced first: when this process dies before the
// connection is stored, run-connections finds the trust and takes it back.
func (s service) makeTrust(ctx context.Context, who domain.Identity, cloud session, c *domain.Connection) error {
	intent, err := uuid.NewV7()
	if err != nil {
		return err
	}
	made, err := cloud.CreateTrust(ctx, who, s.trustee, c.ActsAs.Roles, c.ExpiresAt.Add(domain.TrustSpare), func(end time.Time) (bool, error) {
		return s.AnnounceTrust(ctx, domain.OldTrust{ID: intent, ProjectID: c.ProjectID, ConnectionID: c.ID, UserID: who.UserID, ExpiresAt: end})
	})
	if err == nil {
		c.DelegationID, c.TrustExpiresAt, c.TrustIntent = made.ID, made.ExpiresAt, intent
		return nil
	}
	if hasRefused(err) {
		c.TrustIntent = intent
		s.forgetTrust(ctx, *c)
	}
	return s.badTrustee(err)
}

// hasRefused says whether Keystone has surely made no trust. After any other failure run-connections looks.
func hasRefused(err error) bool {
	switch apperr.CodeOf(err) {
	case apperr.Invalid, apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound, apperr.Conflict:
		return true
	}
	return false
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
		s.forgetTrust(ctx, c)
		return
	}
	s.dropTrust(ctx, c)
}

// dropTrust has run-connections take back a trust that is not stored. If the connection got it after all, it stays.
func (s service) dropTrust(ctx context.Context, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	slog.WarnContext(ctx, "a connection did not get its new trust, which is taken back", "connection_id", c.ID)
	err := s.DropTrust(ctx, domain.OldTrust{
		ID: c.TrustIntent, ProjectID: c.ProjectID, ConnectionID: c.ID, UserID: c.UserID, TrustID: c.DelegationID, ExpiresAt: c.TrustExpiresAt,
	})
	if err != nil {
		slog.WarnContext(ctx, "a trust is taken back only when its announcement is over", "connection_id", c.ID, "error", err)
	}
	s.wake("run-connections")
}

// forgetTrust takes a trust that Keystone does not have off the list of those to be taken back.
func (s service) forgetTrust(ctx context.Context, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if err := s.ForgetTrust(ctx, c.ProjectID, c.TrustIntent); err != nil {
		slog.WarnContext(ctx, "a trust that Keystone does not have stays announced for a while", "connection_id", c.ID, "error", err)
	}
}
