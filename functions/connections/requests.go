package connections

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// grantStore is what granting a request needs of Postgres. Tests fake it to fail between Keystone and Postgres.
type grantStore interface {
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.ConnectionRequest, error)
	ClaimGrant(
		ctx context.Context, projectID string, id uuid.UUID, userID string, sha256 []byte, claimFor time.Duration,
	) (domain.ConnectionRequest, domain.Claim, error)
	ReleaseGrant(ctx context.Context, projectID string, id uuid.UUID, claim domain.Claim) (released bool, err error)
}

const (
	// grantTimeout bounds a grant. The claim outlives it, so that no other replica creates a second trust meanwhile.
	grantTimeout = time.Minute
	grantClaim   = grantTimeout + 2*delegation.CleanTimeout
)

// CreateRequest stores a request to a project. It does not check that the project exists: the answer would reveal which
// do.
func (s service) CreateRequest(ctx context.Context, r domain.ConnectionRequest) (domain.ConnectionRequest, error) {
	now, err := s.store.Now(ctx)
	if err != nil {
		return r, err
	}
	if left := r.Terms.End(now).Sub(now); left <= 0 || left > domain.MaxConnectionTime {
		last := now.Add(domain.MaxConnectionTime).UTC().Format(time.RFC3339)
		return r, apperr.InvalidField("expires_at",
			fmt.Sprintf("is %s: must be in the future, and before %s", r.Terms.End(now).Format(time.RFC3339), last))
	}
	var isResumed bool
	if r.ID, _, isResumed = domain.AttemptFrom(ctx); isResumed {
		stored, err := s.requests.Get(ctx, r.Requester.ProjectID, r.ID)
		if apperr.CodeOf(err) != apperr.NotFound {
			s.wake("deliver-events")
			return stored, err
		}
	}
	if r, err = s.requests.Create(ctx, r); err == nil {
		s.wake("deliver-events")
	}
	return r, err
}

// decidable reads a request that the caller may grant or decline.
func (s service) decidable(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.ConnectionRequest, error) {
	r, err := s.grants.Get(ctx, who.ProjectID, id)
	if err == nil && !r.Received(who) {
		err = apperr.New(apperr.Forbidden, "only the project %s can grant or decline the request", r.ProjectID)
	}
	return r, err
}

// DeclineRequest ends a request that the caller's project has received.
func (s service) DeclineRequest(
	ctx context.Context, who domain.Identity, id uuid.UUID, reason string,
) (domain.ConnectionRequest, error) {
	r, err := s.decidable(ctx, who, id)
	if err != nil {
		return r, err
	}
	if r, err = s.requests.Decline(ctx, who.ProjectID, id, who.UserID, reason); err == nil {
		s.wake("deliver-events")
	}
	return r, err
}

// WithdrawRequest ends a request that the caller's project has sent.
func (s service) WithdrawRequest(ctx context.Context, who domain.Identity, id uuid.UUID) error {
	r, err := s.requests.Get(ctx, who.ProjectID, id)
	if err != nil {
		return err
	}
	if !r.Sent(who) {
		return apperr.New(apperr.Forbidden, "only the project %s can withdraw the request", r.Requester.ProjectID)
	}
	if _, err = s.requests.Withdraw(ctx, who.ProjectID, id, who.UserID); err == nil {
		s.wake("deliver-events")
	}
	return err
}

// GrantRequest creates the connection that a request describes, or one that permits less. created is false when the
// same grant was made before.
func (s service) GrantRequest(
	ctx context.Context, who domain.Identity, token domain.Secret, id uuid.UUID, in GrantConnectionRequest,
) (c domain.Connection, created bool, err error) {
	r, err := s.decidable(ctx, who, id)
	if err != nil {
		return c, false, err
	}
	now, err := s.store.Now(ctx)
	if err != nil {
		return c, false, err
	}
	d, err := in.draft(who, r, now)
	if err != nil && r.Status == domain.RequestPending { // otherwise ClaimGrant reports that the request is decided
		return c, false, err
	}
	hash := in.hash()
	r, claim, err := s.grants.ClaimGrant(ctx, who.ProjectID, id, who.UserID, hash, grantClaim)
	if err != nil {
		return c, false, err
	}
	if !claim.Acquired {
		s.wake("deliver-events")
		c, err = s.store.Get(ctx, who, r.ConnectionID)
		return c, false, err
	}
	d.grant = &domain.Grant{ProjectID: who.ProjectID, RequestID: id, Claim: claim, UserID: who.UserID, SHA256: hash}
	creating, cancel := context.WithTimeout(ctx, grantTimeout)
	defer cancel()
	if c, err = s.Create(creating, who, token, d); err == nil {
		return c, true, nil
	}
	if _, releaseErr := s.releaseGrant(ctx, d); releaseErr != nil {
		slog.WarnContext(ctx, "the request cannot be granted before the claim expires", "request_id", id,
			"error", releaseErr)
	}
	return c, false, err
}

// hash is the domain.RequestHash. It leaves out the secret, which could be guessed from a stored hash.
func (g GrantConnectionRequest) hash() []byte {
	g.Kind, g.Secret = g.kind(), nil
	hash := domain.RequestHash(g)
	return hash[:]
}

func (s service) releaseGrant(ctx context.Context, d draft) (released bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), delegation.CleanTimeout)
	defer cancel()
	return s.grants.ReleaseGrant(ctx, d.grant.ProjectID, d.grant.RequestID, d.grant.Claim)
}
