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

// changeAttempts is how often a change is made anew when somebody else has changed the connection meanwhile.
const changeAttempts = 3

// Change changes a connection behind its id. Running orders and actions go on with what it has then.
func (s service) Change(
	ctx context.Context, who domain.Identity, token domain.Secret, id uuid.UUID, in changeRequest, isMeant func(domain.Connection) bool,
) (domain.Connection, error) {
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	tried := wish{} // what Keystone has said to an attempt before
	for range changeAttempts {
		before, err := s.changeable(ctx, who, id)
		if err != nil {
			return before, s.discard(ctx, tried, err)
		}
		if !isMeant(before) {
			return before, s.discard(ctx, tried, apperr.New(apperr.Precondition,
				"the connection has changed since: its ETag is %s now", etag(before)))
		}
		after, err := in.apply(who, before)
		if err == nil {
			err = s.prepare(ctx, who, token, before, &after, &tried)
		}
		if err != nil {
			return before, s.discard(ctx, tried, err)
		}
		if len(before.Changed(after.Connection)) == 0 {
			return before, s.discard(ctx, tried, nil)
		}
		stored, err := s.store.Change(ctx, before, after.Connection)
		if errors.Is(err, domain.ErrChanged) {
			continue
		}
		if err != nil {
			return stored, s.discard(ctx, tried, err)
		}
		s.wake("run-connections", "deliver-events")
		return stored, nil
	}
	return domain.Connection{}, s.discard(ctx, tried, apperr.New(apperr.Conflict, "others change the connection at the same time: send the request again"))
}

// changeable reads a connection that the caller may change.
func (s service) changeable(ctx context.Context, who domain.Identity, id uuid.UUID) (c domain.Connection, err error) {
	if c, err = s.Get(ctx, who, id); err != nil {
		return c, err
	}
	if !c.Owned(who) || !who.MayAct() {
		return c, apperr.New(apperr.Forbidden, "only who may do more than read in the project %s can change the connection", c.ProjectID)
	}
	if !c.Status.IsOpen() {
		return c, apperr.New(apperr.Conflict, "the connection is %s, and cannot be changed any more: make a new one", c.Status)
	}
	return c, nil
}

// prepare checks what a change takes, and gets it: a new trust, or a login with the new credential. What an attempt before has got is used.
func (s service) prepare(ctx context.Context, who domain.Identity, token domain.Secret, before domain.Connection, after, tried *wish) error {
	if before.Kind == domain.TrustConnection && after.ExpiresAt.After(before.ExpiresAt) && who.UserID != before.UserID {
		return apperr.New(apperr.Forbidden, "expires_at: only the user %s, who has delegated it, can let a trust last longer, because that takes the user's own token",
			before.UserID)
	}
	if err := s.resolve(ctx, who, token, after); err != nil {
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
		return s.renewTrust(ctx, who, token, before, after, tried)
	}
	if after.secret != "" {
		return s.tryCredential(ctx, after, before.ActsAs.ProjectID)
	}
	if err := suffices("actions", before.ActsAs, after.Actions); err != nil {
		return err
	}
	return endsBefore(after.ExpiresAt, before.CredentialExpiresAt)
}

// checkNewLimits holds changed limits against the flavors that the connection's cloud had last. Those of another credential are checked with its own.
func (s service) checkNewLimits(before domain.Connection, after wish) error {
	if after.secret != "" || !slices.Contains(before.Changed(after.Connection), "limits") {
		return nil
	}
	after.Flavors = before.Flavors
	return checkLimits(after, s.regionOf(after))
}

// mayWiden refuses a change that lets more be done to who has neither delegated it nor the roles for it.
func mayWiden(who domain.Identity, before, after domain.Connection) error {
	fields := before.Widens(after)
	if len(fields) == 0 || before.MayWiden(who) {
		return nil
	}
	return apperr.New(apperr.Forbidden, "%s: the connection would permit more, which only the user %s, who has delegated it, can do, or who has the roles %s",
		strings.Join(fields, ", "), before.UserID, strings.Join(before.ActsAs.Roles, ", "))
}

// renewTrust makes a new trust when the one that is there would end before the connection.
func (s service) renewTrust(ctx context.Context, who domain.Identity, token domain.Secret, before domain.Connection, after, tried *wish) error {
	if !after.ExpiresAt.After(before.ExpiresAt) {
		return nil
	}
	if tried.TrustIntent != uuid.Nil {
		after.DelegationID, after.TrustExpiresAt, after.TrustIntent = tried.DelegationID, tried.TrustExpiresAt, tried.TrustIntent
		return nil
	}
	if !after.ExpiresAt.Add(domain.TrustSpare).After(before.TrustExpiresAt) {
		return nil
	}
	if s.trustee == "" {
		return apperr.New(apperr.Unsupported, "no trusts are made here (TRUSTEE_USER_ID is not set): delete the connection and hand over an application credential")
	}
	for _, role := range before.ActsAs.Roles {
		if !slices.Contains(who.Roles, role) {
			return apperr.New(apperr.Forbidden, "expires_at: your token does not have the role %s, which the connection acts with: use one that has it", role)
		}
	}
	if err := s.makeTrust(ctx, who, s.cloud.As(token, who.ProjectID), &after.Connection); err != nil {
		return err
	}
	*tried = *after
	return nil
}

// discard takes a trust back that was made for a change which is not stored, and gives the error.
func (s service) discard(ctx context.Context, tried wish, err error) error {
	if tried.TrustIntent != uuid.Nil {
		s.dropTrust(ctx, tried.Connection)
	}
	return err
}

// Suspend has nothing be done through a connection until it is resumed, or resumes it.
func (s service) Suspend(ctx context.Context, who domain.Identity, id uuid.UUID, suspend bool) (domain.Connection, error) {
	c, err := s.changeable(ctx, who, id)
	if err != nil {
		return c, err
	}
	changed, err := s.store.Suspend(domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil)), c.ProjectID, c.ID, suspend)
	if err != nil {
		return c, err
	}
	if changed {
		s.wake("deliver-events", "run-connections")
	}
	return s.Get(ctx, who, id)
}
