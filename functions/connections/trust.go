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
	w.ActsAs = domain.ActsAs{UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID, ProjectName: who.ProjectName, Roles: w.roles}
	if err := s.makeTrust(ctx, who, cloud, &w.Connection); err != nil {
		return stored, err
	}
	if stored, err = s.keep(ctx, w.Connection); err != nil {
		s.giveUp(ctx, cloud, w.Connection)
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
	made, err := cloud.CreateTrust(ctx, who, s.trustee, c.ActsAs.Roles, c.ExpiresAt.Add(domain.TrustSpare), func(end time.Time) error {
		return s.AnnounceTrust(ctx, domain.OldTrust{ID: intent, ProjectID: c.ProjectID, ConnectionID: c.ID, UserID: who.UserID, ExpiresAt: end})
	})
	if err == nil {
		c.DelegationID, c.TrustExpiresAt, c.TrustIntent = made.ID, made.ExpiresAt, intent
		return nil
	}
	if !apperr.Retryable(err) { // Keystone has refused it; of anything else it is not known whether the trust was made
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		if dropErr := s.DropTrust(ctx, c.ProjectID, intent, ""); dropErr != nil {
			slog.WarnContext(ctx, "a trust that was not made stays announced for a while", "connection_id", c.ID, "error", dropErr)
		}
	}
	return s.badTrustee(err)
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
	s.forgetTrust(ctx, c, err == nil)
}

// dropTrust has run-connections take back a trust that a change has made and that the connection did not get. If the connection got it
// after all, the list does not have it, and it stays.
func (s service) dropTrust(ctx context.Context, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	slog.WarnContext(ctx, "a connection did not get its new trust, which is taken back", "connection_id", c.ID)
	s.forgetTrust(ctx, c, false)
}

// forgetTrust takes a trust that is gone off the list of those to be taken back. One that is not is left to run-connections.
func (s service) forgetTrust(ctx context.Context, c domain.Connection, isGone bool) {
	trust := c.DelegationID
	if isGone {
		trust = ""
	}
	if err := s.DropTrust(ctx, c.ProjectID, c.TrustIntent, trust); err != nil {
		slog.WarnContext(ctx, "a trust stays on the list of those to be taken back", "connection_id", c.ID, "error", err)
	}
	if !isGone {
		s.wake("run-connections")
	}
}
