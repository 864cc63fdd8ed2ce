package connections

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// session is the part of OpenStack that this function needs.
type session interface {
	naming
	Flavors(context.Context) ([]domain.Flavor, error)
	CreateTrust(ctx context.Context, who domain.Identity, trustee string, roles []string, after time.Time) (domain.Trust, error)
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
	Get(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.Connection, error)
	List(ctx context.Context, who domain.Identity, q domain.ConnectionQuery) ([]domain.Connection, error)
	End(ctx context.Context, projectID string, id uuid.UUID, status domain.ConnectionStatus, reason string, revoked bool) (ended bool, err error)
	MarkRevoked(context.Context, domain.Connection) error
	RequestCheck(ctx context.Context, projectID string, id uuid.UUID) (since time.Time, err error)
	FailedCheck(ctx context.Context, projectID string, id uuid.UUID) (at time.Time, why string, err error)
}

// sealer makes a secret readable for run-connections only.
type sealer interface {
	Seal(purpose string, secret domain.Secret) ([]byte, error)
}

type service struct {
	store
	cloud   openStack
	key     sealer
	trustee string   // the user to whom trusts are made; "" = there are none
	clouds  []string // the other clouds that there may be connections to
	wake    func(functions ...string)
}

// What is taken back is so also when the caller has hung up.
const cleanTimeout = 10 * time.Second

// Create delegates: it makes the trust, or looks whether the application credential is good, and stores the connection.
func (s service) Create(ctx context.Context, who domain.Identity, token domain.Secret, w wish) (domain.Connection, error) {
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	if w.Kind == domain.TrustConnection && s.trustee == "" {
		return w.Connection, apperr.New(apperr.Unsupported, "no trusts are taken here (TRUSTEE_USER_ID is not set): hand over an application credential")
	}
	now, err := s.Now(ctx)
	if err != nil {
		return w.Connection, err
	}
	if left := w.ExpiresAt.Sub(now); left <= 0 || left > domain.MaxConnectionTime {
		return w.Connection, apperr.InvalidField("expires_at", "must be in the future, and before "+now.Add(domain.MaxConnectionTime).UTC().Format(time.RFC3339))
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
	made, err := cloud.CreateTrust(ctx, who, s.trustee, w.roles, w.ExpiresAt.Add(domain.TrustSpare))
	if err != nil {
		return stored, s.badTrustee(err)
	}
	w.DelegationID, w.TrustExpiresAt = made.ID, made.ExpiresAt
	if stored, err = s.keep(ctx, w.Connection); err != nil {
		s.giveUp(ctx, cloud, w.Connection)
	}
	return stored, err
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
}

// credential looks whether an application credential is good, and what it is of.
func (s service) credential(ctx context.Context, who domain.Identity, w wish) (stored domain.Connection, err error) {
	if err := s.place(&w); err != nil {
		return stored, err
	}
	cloud, as, err := s.cloud.Credential(ctx, w.AuthURL, w.Region, w.DelegationID, w.secret)
	switch apperr.CodeOf(err) {
	case "":
	case apperr.Unauthenticated, apperr.NotFound, apperr.Forbidden, apperr.Invalid:
		return stored, badCredential(err)
	default:
		return stored, err
	}
	if w.AuthURL == "" && as.ProjectID != who.ProjectID {
		return stored, apperr.InvalidField("id", fmt.Sprintf("is of the project %s (%s): use a token of that project, because its servers are followed there", as.ProjectName, as.ProjectID))
	}
	if err := suffices(as, w.Actions); err != nil {
		return stored, err
	}
	w.ActsAs = as
	if w.Flavors, err = cloud.Flavors(ctx); err != nil {
		return stored, badAccess(w, err)
	}
	if err := checkLimits(w, s.regionOf(w)); err != nil {
		return stored, err
	}
	if err := outlives(ctx, cloud, w); err != nil {
		return stored, err
	}
	if w.Secret, err = s.key.Seal(w.SealedFor(), w.secret); err != nil {
		return stored, err
	}
	return s.keep(ctx, w.Connection)
}

// suffices refuses an application credential that only reads when the actions need more. Other roles than reader have the cloud's own
// names and rights, so what they are good for is seen when they are used.
func suffices(as domain.ActsAs, actions []domain.Permission) error {
	var more []string
	for _, p := range actions {
		if p != domain.MayConnect { // which only reads
			more = append(more, string(p))
		}
	}
	if !as.ReadsOnly() || len(more) == 0 {
		return nil
	}
	return apperr.InvalidField("id", fmt.Sprintf(
		"the application credential has only the role reader, which cannot %s: make one with another of your roles, such as member; "+
			"with reader alone a connection may have the action connect only", strings.Join(more, ", ")))
}

// outlives refuses a connection that would end later than its application credential, as far as Keystone lets us see when that ends.
func outlives(ctx context.Context, cloud session, w wish) error {
	end, err := cloud.CredentialEnd(ctx, w.DelegationID)
	switch apperr.CodeOf(err) {
	case "":
	case apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound:
		return nil // the operator's policy keeps it from its own user: the connection is lost when the credential ends
	default:
		return err
	}
	if end.IsZero() || !w.ExpiresAt.After(end) {
		return nil
	}
	return apperr.InvalidField("expires_at", fmt.Sprintf("is %s, and the application credential ends before that: it must not be after %s",
		w.ExpiresAt.Format(time.RFC3339Nano), end.Format(time.RFC3339Nano)))
}

// badCredential is the caller's mistake, and not his token's.
func badCredential(cause error) error {
	e := apperr.Wrap(apperr.Invalid, cause, "Keystone does not accept the application credential: its id or its secret is wrong, it has expired, or its user is disabled")
	e.Fields = []apperr.Field{{Field: "id", Detail: "is not accepted with this secret"}, {Field: "secret", Detail: "is not accepted for this id"}}
	return e
}

// badAccess says why a credential that Keystone accepts cannot be used, where that is the caller's mistake.
func badAccess(w wish, cause error) error {
	e := apperr.As(cause)
	switch {
	case e.Code == apperr.Unauthenticated || e.Code == apperr.Forbidden:
		e = apperr.InvalidField("id", "is not allowed to list flavors: its access rules must have what GET /v1/connections/access-rules lists")
	case e.Code == apperr.Internal && w.AuthURL != "" && w.Region == "":
		e = apperr.InvalidField("region", "must be given, because that cloud has several")
	default:
		return cause
	}
	e.Cause = cause
	return e
}

// place finds the cloud that is meant, among those that there may be connections to. What is this cloud's own is left out.
func (s service) place(w *wish) error {
	sameCloud, sameRegion := s.cloud.Home(w.AuthURL, w.Region)
	if sameCloud {
		w.AuthURL = ""
		if sameRegion {
			w.Region = ""
		}
		return nil
	}
	for _, other := range s.clouds {
		if bare(other) == bare(w.AuthURL) {
			w.AuthURL = other
			return nil
		}
	}
	host := "" // of the URL no more is repeated: there may be a password in it
	if u, err := url.Parse(w.AuthURL); err == nil {
		host = u.Host
	}
	return apperr.Unknown("auth_url", "cloud", host, s.clouds...)
}

func (s service) keep(ctx context.Context, c domain.Connection) (domain.Connection, error) {
	stored, err := s.store.Create(ctx, c)
	if err == nil {
		s.wake("deliver-events")
	}
	return stored, err
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
