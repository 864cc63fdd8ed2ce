package connections

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// session is the part of OpenStack that this function needs.
type session interface {
	naming
	Flavors(context.Context) ([]domain.Flavor, error)
	CreateTrust(ctx context.Context, who domain.Identity, trustee string, roles []string, after time.Time, announce func(end time.Time) (isFree bool, err error)) (domain.Trust, error)
	DeleteTrust(ctx context.Context, id string) error
	CredentialEnd(ctx context.Context, id string) (time.Time, error)
}

// openStack opens sessions.
type openStack interface {
	As(token domain.Secret, scope string) session
	Credential(ctx context.Context, authURL, region, id string, secret domain.Secret) (session, domain.ActsAs, error)
	Home(authURL, region string) (sameCloud, sameRegion bool)
	Region() string
}

// store keeps connections. It takes secrets sealed, and gives none back.
type store interface {
	Now(context.Context) (time.Time, error)
	Create(context.Context, domain.Connection) (domain.Connection, error)
	CreateGranted(context.Context, domain.Connection, domain.Grant) (domain.Connection, error)
	Get(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.Connection, error)
	List(ctx context.Context, who domain.Identity, q domain.ConnectionQuery) ([]domain.Connection, error)
	End(ctx context.Context, projectID string, id uuid.UUID, status domain.ConnectionStatus, reason string, revoked bool) (ended bool, err error)
	MarkRevoked(context.Context, domain.Connection) error
	Change(ctx context.Context, before, after domain.Connection) (domain.Connection, error)
	Suspend(ctx context.Context, projectID string, id uuid.UUID, suspend bool) (changed bool, err error)
	AnnounceTrust(context.Context, domain.OldTrust) (isFree bool, err error)
	ForgetTrust(ctx context.Context, projectID string, intent uuid.UUID) error
	DropTrust(context.Context, domain.OldTrust) error
	RequestCheck(ctx context.Context, projectID string, id uuid.UUID) (since time.Time, err error)
	FailedCheck(ctx context.Context, projectID string, id uuid.UUID) (at time.Time, why string, err error)
}

// sealer makes a secret readable for run-connections only.
type sealer interface {
	Seal(purpose string, secret domain.Secret) ([]byte, error)
}

type service struct {
	store
	requests requestStore
	cloud    openStack
	key      sealer
	trustee  string   // the user to whom trusts are made; "" = there are none
	clouds   []string // the other clouds that there may be connections to
	wake     func(functions ...string)
}

// What is taken back is so also when the caller has hung up.
const cleanTimeout = 10 * time.Second

// Create delegates: it makes the trust, or looks whether the application credential is good, and stores the connection.
func (s service) Create(ctx context.Context, who domain.Identity, token domain.Secret, w wish) (domain.Connection, error) {
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	if w.Kind == domain.TrustConnection && s.trustee == "" {
		return w.Connection, apperr.New(apperr.Unsupported, "no trusts are taken here (TRUSTEE_USER_ID is not set): hand over an application credential")
	}
	err := s.checkEnd(ctx, w.ExpiresAt)
	if err != nil {
		return w.Connection, err
	}
	if w.ID, err = uuid.NewV7(); err != nil {
		return w.Connection, err
	}
	if err := s.resolve(ctx, who, token, &w); err != nil {
		return w.Connection, err
	}
	if w.Kind == domain.TrustConnection {
		return s.trust(ctx, who, token, w)
	}
	return s.credential(ctx, who, w)
}

// checkEnd refuses an end that is over or too far ahead.
func (s service) checkEnd(ctx context.Context, end time.Time) error {
	now, err := s.Now(ctx)
	if err != nil {
		return err
	}
	if left := end.Sub(now); left <= 0 || left > domain.MaxConnectionTime {
		return apperr.InvalidField("expires_at", "must be in the future, and before "+now.Add(domain.MaxConnectionTime).UTC().Format(time.RFC3339))
	}
	return nil
}

// List gives a page of the connections; more says that there is another.
func (s service) List(ctx context.Context, who domain.Identity, q domain.ConnectionQuery) (page []domain.Connection, more bool, err error) {
	limit := q.Limit
	q.Limit++
	found, err := s.store.List(ctx, who, q)
	return found[:min(limit, len(found))], len(found) > limit, err
}

// Delete ends a connection, and takes back what was delegated: at once when the caller has delegated it, else run-connections
// does, which goes on with it when Keystone is away, too.
func (s service) Delete(ctx context.Context, who domain.Identity, token domain.Secret, id uuid.UUID) error {
	c, err := s.Get(ctx, who, id)
	if err != nil {
		return err
	}
	if !c.Owned(who) || !who.MayAct() {
		return apperr.New(apperr.Forbidden, "only who may do more than read in the project %s can delete the connection", c.ProjectID)
	}
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	ended, err := s.End(ctx, c.ProjectID, c.ID, domain.ConnectionDeleted, "it was deleted", false)
	if err != nil {
		return err
	}
	if !ended {
		return apperr.New(apperr.NotFound, "there is no connection %s", id) // another one was faster
	}
	if c.Kind == domain.TrustConnection && c.UserID == who.UserID {
		if err := s.revoke(ctx, token, c); err != nil {
			slog.WarnContext(ctx, "a trust is left to run-connections", "connection_id", c.ID, "error", err)
		}
	}
	s.wake("run-connections", "deliver-events")
	return nil
}

func (s service) revoke(ctx context.Context, token domain.Secret, c domain.Connection) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	if err := s.cloud.As(token, c.ProjectID).DeleteTrust(ctx, c.DelegationID); err != nil {
		return err
	}
	return s.MarkRevoked(ctx, c)
}
