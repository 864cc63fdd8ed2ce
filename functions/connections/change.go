package connections

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// changeAttempts bounds the retries of a change while others change the connection.
const changeAttempts = 3

// Change changes a connection. Running orders and actions continue with the changed one.
func (s service) Change(
	ctx context.Context, who domain.Identity, token domain.Secret, id uuid.UUID, in ChangeConnection,
	expected func(version int64) bool,
) (domain.Connection, error) {
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	var renewed draft // with the trust that an earlier attempt has created
	for attempt := range changeAttempts {
		before, err := s.changeable(ctx, who, id)
		if err != nil {
			return before, s.discard(ctx, renewed, err)
		}
		if !expected(before.Seq) {
			return before, s.discard(ctx, renewed, apperr.New(apperr.Precondition,
				"the connection has been changed: its ETag is \"%d\" now", before.Seq))
		}
		after, err := in.draft(before)
		if err == nil && attempt == 0 && (after.secret != "" || len(before.Changed(after.Connection)) > 0) {
			err = s.changes.Take(ctx, who.ProjectID, "this project") // before Keystone has work
		}
		if err == nil {
			err = s.prepare(ctx, who, token, before, &after, &renewed)
		}
		if err != nil || len(before.Changed(after.Connection)) == 0 {
			return before, s.discard(ctx, renewed, err)
		}
		stored, err := s.store.Change(ctx, before, after.Connection)
		if errors.Is(err, domain.ErrChanged) {
			continue
		}
		if err != nil {
			return stored, s.discard(ctx, renewed, err)
		}
		s.wake("run-connections", "deliver-events")
		return stored, nil
	}
	return domain.Connection{}, s.discard(ctx, renewed,
		apperr.New(apperr.Conflict, "others change the connection at the same time: repeat the request"))
}

// changeable reads a connection that the caller may change.
func (s service) changeable(ctx context.Context, who domain.Identity, id uuid.UUID) (c domain.Connection, err error) {
	if c, err = s.store.Get(ctx, who, id); err != nil {
		return c, err
	}
	if !c.Owned(who) {
		return c, apperr.New(apperr.Forbidden, "only the project %s can change the connection", c.ProjectID)
	}
	if err := checkOwn(c); err != nil {
		return c, err
	}
	if !c.Status.IsOpen() {
		return c, apperr.New(apperr.Conflict, "the connection is %s and cannot be changed: create a new one", c.Status)
	}
	return c, nil
}

// checkOwn rejects a change of a connection that was made for a lease or for managed resources: it ends with them.
func checkOwn(c domain.Connection) error {
	if c.Managed {
		return apperr.New(apperr.Conflict,
			"the connection is that of declared resources, and ends with the last of them")
	}
	if c.LeaseID == uuid.Nil {
		return nil
	}
	return apperr.New(apperr.Conflict, "the connection is that of lease %s, and ends with it: change or end the lease",
		c.LeaseID)
}

// prepare checks a change, and gets the new trust or logs in with the new credential. It uses what an earlier attempt
// has got.
func (s service) prepare(
	ctx context.Context, who domain.Identity, token domain.Secret, before domain.Connection, after, renewed *draft,
) error {
	if before.Kind == domain.TrustConnection && after.ExpiresAt.After(before.ExpiresAt) && who.UserID != before.UserID {
		return apperr.New(apperr.Forbidden,
			"expires_at: only the user %s, who has delegated it, can extend a trust, "+
				"because that takes the user's own token",
			before.UserID)
	}
	if err := s.resolveNames(ctx, who, token, after); err != nil {
		return err
	}
	if err := s.checkNewLimits(before, *after); err != nil {
		return err
	}
	if err := mayWiden(who, before, after.Connection); err != nil {
		return err
	}
	if !after.ExpiresAt.Equal(before.ExpiresAt) {
		if err := s.checkEnd(ctx, after.ExpiresAt); err != nil {
			return err
		}
	}
	if before.Kind == domain.TrustConnection {
		return s.renewTrust(ctx, who, token, before, after, renewed)
	}
	if after.secret != "" {
		return s.checkCredential(ctx, after, before.ActsAs.ProjectID)
	}
	if err := checkRoles("actions", before.ActsAs, after.Actions); err != nil {
		return err
	}
	return endsBefore(after.ExpiresAt, before.CredentialExpiresAt)
}

// checkNewLimits checks changed limits against the flavors that were last read through the connection. checkCredential
// does it for a new credential.
func (s service) checkNewLimits(before domain.Connection, after draft) error {
	if after.secret != "" || !slices.Contains(before.Changed(after.Connection), "limits") {
		return nil
	}
	after.Flavors = before.Flavors
	return checkLimits(after, s.regionOf(after))
}

// mayWiden rejects a change that permits more, unless the caller has delegated the connection or has the roles for it.
func mayWiden(who domain.Identity, before, after domain.Connection) error {
	fields := before.Widens(after)
	if len(fields) == 0 || before.MayWiden(who) {
		return nil
	}
	return apperr.New(apperr.Forbidden,
		"%s: permitting more takes the user %s, who has delegated the connection, or the roles %s",
		strings.Join(fields, ", "), before.UserID, strings.Join(before.ActsAs.Roles, ", "))
}

// renewTrust creates a new trust when the current one would end before the connection.
func (s service) renewTrust(
	ctx context.Context, who domain.Identity, token domain.Secret, before domain.Connection, after, renewed *draft,
) error {
	if !after.ExpiresAt.After(before.ExpiresAt) {
		return nil
	}
	if renewed.TrustIntent != uuid.Nil {
		after.DelegationID, after.TrustExpiresAt, after.TrustIntent = renewed.DelegationID, renewed.TrustExpiresAt,
			renewed.TrustIntent
		return nil
	}
	if !after.ExpiresAt.Add(domain.TrustSpare).After(before.TrustExpiresAt) {
		return nil
	}
	if s.trusts.Trustee == "" {
		return apperr.New(apperr.Unsupported, "trusts are not supported here (TRUSTEE_USER_ID is not set): "+
			"delete the connection and create one with an application credential")
	}
	for _, role := range before.ActsAs.Roles {
		if !slices.Contains(who.Roles, role) {
			return apperr.New(apperr.Forbidden,
				"expires_at: your token does not have the role %s, which the connection acts with: use one that has it",
				role)
		}
	}
	if err := s.trusts.Create(ctx, who, s.cloud.As(token, who.ProjectID), &after.Connection); err != nil {
		return err
	}
	*renewed = *after
	return nil
}

// discard revokes the new trust of a change that is not stored, and gives the error.
func (s service) discard(ctx context.Context, renewed draft, err error) error {
	if renewed.TrustIntent != uuid.Nil {
		s.trusts.Drop(ctx, renewed.Connection)
	}
	return err
}
