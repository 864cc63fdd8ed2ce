package connections

import (
	"context"
	"log/slog"
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
}

// openStack opens sessions.
type openStack interface {
	As(token domain.Secret, scope string) session
	Credential(ctx context.Context, authURL, region, id string, secret domain.Secret) (session, domain.ActsAs, error)
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

// List gives a page of connections; more says that another one follows.
func (s service) List(
	ctx context.Context, who domain.Identity, q domain.ConnectionQuery,
) (page []domain.Connection, more bool, err error) {
	limit := q.Limit
	q.Limit++
	found, err := s.connections.List(ctx, who, q)
	return found[:min(limit, len(found))], len(found) > limit, err
}

// Delete ends a connection and revokes its delegation: at once for the user who has delegated it. Otherwise
// run-connections revokes it, and retries while Keystone is away.
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
