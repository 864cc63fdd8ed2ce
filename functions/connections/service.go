package connections

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// session is the part of OpenStack that this function needs.
type session interface {
	nameResolver
	delegation.Session
	Flavors(context.Context) ([]domain.Flavor, error)
	CredentialEnd(ctx context.Context, id string) (time.Time, error)
	ActsAs() domain.ActsAs
}

// openStack opens sessions.
type openStack interface {
	As(token domain.Secret, scope string) session
	Credential(ctx context.Context, authURL, region, id string, secret domain.Secret) (session, error)
	Home(authURL, region string) (sameCloud, sameRegion bool)
	Region() string
}

// store is what creating and changing a connection needs of Postgres. Tests fake it to fail between Keystone and
// Postgres.
type store interface {
	delegation.Store
	Now(context.Context) (time.Time, error)
	Create(context.Context, domain.Connection) (domain.Connection, error)
	CreateGranted(context.Context, domain.Connection, domain.Grant) (domain.Connection, error)
	Get(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.Connection, error)
	Change(ctx context.Context, before, after domain.Connection) (domain.Connection, error)
}

// sealer encrypts a secret so that only run-connections can decrypt it.
type sealer interface {
	Seal(purpose string, secret domain.Secret) ([]byte, error)
}

// limiter bounds how often a source may do something.
type limiter interface {
	Take(ctx context.Context, source, name string) error
}

type service struct {
	connections postgres.Connections
	delegations postgres.Delegations
	requests    postgres.ConnectionRequests
	store       store      // connections, but in tests
	grants      grantStore // requests, but in tests
	cloud       openStack
	key         sealer
	trusts      delegation.Trusts
	clouds      []string // the other clouds whose application credentials are accepted
	wake        func(functions ...string)
	changes     limiter
}

// Create delegates: it creates a trust, or checks the application credential, and stores the connection.
func (s service) Create(
	ctx context.Context, who domain.Identity, token domain.Secret, d draft,
) (domain.Connection, error) {
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	if d.Kind == domain.TrustConnection && s.trusts.Trustee == "" {
		return d.Connection, apperr.New(apperr.Unsupported,
			"trusts are not supported here (TRUSTEE_USER_ID is not set): use an application credential")
	}
	err := s.checkEnd(ctx, d.ExpiresAt)
	if err != nil {
		return d.Connection, err
	}
	var isResumed bool
	if d.ID, _, isResumed = domain.AttemptFrom(ctx); isResumed && d.grant == nil {
		stored, err := s.store.Get(ctx, who, d.ID)
		if err == nil && stored.Status == domain.ConnectionDeleted {
			err = apperr.New(apperr.Conflict, "the connection %s, which this request has made, was deleted: send the "+
				"request with another Idempotency-Key to make a new one", d.ID)
		}
		if apperr.CodeOf(err) != apperr.NotFound {
			s.wake("deliver-events") // the earlier attempt may have died before that
			return stored, err
		}
	}
	if err := s.resolveNames(ctx, who, token, &d); err != nil {
		return d.Connection, err
	}
	if d.Kind == domain.TrustConnection {
		return s.createByTrust(ctx, who, token, d)
	}
	return s.createByCredential(ctx, who, d)
}

// checkEnd rejects an end in the past, and one that is too far ahead.
func (s service) checkEnd(ctx context.Context, end time.Time) error {
	now, err := s.store.Now(ctx)
	if err != nil {
		return err
	}
	if left := end.Sub(now); left <= 0 || left > domain.MaxConnectionTime {
		last := now.Add(domain.MaxConnectionTime).UTC().Format(time.RFC3339)
		return apperr.InvalidField("expires_at", "must be in the future, and before "+last)
	}
	return nil
}

// insert stores a connection, and marks the request that it grants.
func (s service) insert(ctx context.Context, d draft) (stored domain.Connection, err error) {
	if d.grant == nil {
		stored, err = s.store.Create(ctx, d.Connection)
	} else {
		stored, err = s.store.CreateGranted(ctx, d.Connection, *d.grant)
	}
	if err == nil {
		s.wake("deliver-events")
	}
	return stored, err
}

// Delete ends a connection and revokes its delegation: immediately for the user who has delegated it. Otherwise
// run-connections revokes it, and retries while Keystone is unavailable.
func (s service) Delete(ctx context.Context, who domain.Identity, token domain.Secret, id uuid.UUID) error {
	c, err := s.connections.Get(ctx, who, id)
	if err != nil {
		return err
	}
	if !c.Owned(who) {
		return apperr.New(apperr.Forbidden, "only the project %s can delete the connection", c.ProjectID)
	}
	if err := checkOwn(c); err != nil {
		return err
	}
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	ended, err := s.connections.Delete(ctx, c.ProjectID, c.ID)
	if err != nil {
		return err
	}
	if !ended {
		return apperr.New(apperr.NotFound, "there is no connection %s", id) // another request has deleted it meanwhile
	}
	if c.Kind == domain.TrustConnection && c.UserID == who.UserID {
		if err := s.revoke(ctx, token, c); err != nil {
			slog.WarnContext(ctx, "run-connections has to revoke a trust", "connection_id", c.ID, "error", err)
		}
	}
	s.wake("run-connections", "deliver-events")
	return nil
}

func (s service) revoke(ctx context.Context, token domain.Secret, c domain.Connection) error {
	ctx, cancel := context.WithTimeout(ctx, delegation.CleanTimeout)
	defer cancel()
	if err := s.cloud.As(token, c.ProjectID).DeleteTrust(ctx, c.DelegationID); err != nil {
		return err
	}
	_, err := s.delegations.MarkRevoked(ctx, c) // it ends only now, so no event has said that its revocation is pending
	return err
}

// Suspend lets nothing be done through a connection until it is resumed, or resumes it.
func (s service) Suspend(
	ctx context.Context, who domain.Identity, id uuid.UUID, suspend bool,
) (domain.Connection, error) {
	c, err := s.changeable(ctx, who, id)
	if err != nil {
		return c, err
	}
	if suspend == c.SuspendedAt.IsZero() { // otherwise nothing is written
		if err := s.changes.Take(ctx, who.ProjectID, "this project"); err != nil {
			return c, err
		}
	}
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	if _, err := s.connections.Suspend(ctx, c.ProjectID, c.ID, suspend); err != nil {
		return c, err
	}
	s.wake("deliver-events", "run-connections")
	return s.connections.Get(ctx, who, id)
}

// changeAttempts bounds the retries of a change while others change the connection.
const changeAttempts = 3

// Change changes a connection. Running orders and actions continue with the changed one.
func (s service) Change(
	ctx context.Context, who domain.Identity, token domain.Secret, id uuid.UUID, in ChangeConnection,
	checkVersion func(int64) error,
) (domain.Connection, error) {
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	var renewed draft // with the trust that an earlier attempt has created
	for attempt := range changeAttempts {
		before, err := s.changeable(ctx, who, id)
		if err == nil {
			err = checkVersion(before.Seq)
		}
		if err != nil {
			return before, s.discard(ctx, renewed, err)
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
	if !after.ExpiresAt.Add(domain.TrustMargin).After(before.TrustExpiresAt) {
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
		s.trusts.Drop(ctx, &renewed.Connection)
	}
	return err
}

const (
	// Check waits so long for the result, and reads it so often.
	checkWait = 10 * time.Second
	checkPoll = 250 * time.Millisecond
	// recheckAfter is the Retry-After of a check that takes longer.
	recheckAfter = 5 * time.Second
)

// Check lets run-connections check that Keystone still accepts the delegation, and waits for the result: only
// run-connections can decrypt delegated credentials. works is nil when the result is not there in time.
func (s service) Check(
	ctx context.Context, who domain.Identity, id uuid.UUID,
) (c domain.Connection, works *bool, err error) {
	if c, err = s.connections.Get(ctx, who, id); err != nil {
		return c, nil, err
	}
	if !c.Owned(who) {
		domain.RecordConnection(ctx, c)
	}
	since, err := s.connections.RequestCheck(ctx, c.ProjectID, id)
	if err != nil {
		return c, nil, err
	}
	s.wake("run-connections")
	for end := time.Now().Add(checkWait); ; {
		if c, err = s.connections.Get(ctx, who, id); err != nil {
			return c, nil, err
		}
		if works, err = s.checked(ctx, c, since); works != nil || err != nil || time.Now().After(end) {
			return c, works, err
		}
		select {
		case <-time.After(checkPoll):
		case <-ctx.Done():
			return c, nil, nil
		}
	}
}

// checked reports whether a connection works, by a check since the moment; nil when there was none.
func (s service) checked(ctx context.Context, c domain.Connection, since time.Time) (works *bool, err error) {
	yes, no := true, false
	switch {
	case !c.Status.IsOpen():
		return &no, nil
	case !c.CheckedAt.Before(since):
		return &yes, nil
	}
	failed, why, err := s.connections.FailedCheck(ctx, c.ProjectID, c.ID)
	if err != nil || failed.Before(since) {
		return nil, err
	}
	unchecked := apperr.New(apperr.Unavailable,
		"the delegation could not be checked, because its cloud does not answer: %s", why)
	unchecked.RetryAfter = recheckAfter
	return nil, unchecked
}
