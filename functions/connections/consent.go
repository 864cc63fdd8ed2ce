package connections

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// requestStore keeps requests for connections.
type requestStore interface {
	Create(context.Context, domain.ConnectionRequest) (domain.ConnectionRequest, error)
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.ConnectionRequest, error)
	List(ctx context.Context, projectID string, q domain.ConnectionRequestQuery) ([]domain.ConnectionRequest, error)
	Decline(ctx context.Context, projectID string, id uuid.UUID, userID, reason string) (domain.ConnectionRequest, error)
	Withdraw(ctx context.Context, projectID string, id uuid.UUID, userID string) (domain.ConnectionRequest, error)
	ClaimGrant(ctx context.Context, projectID string, id uuid.UUID, userID string, sha256 []byte, claimFor time.Duration) (
		r domain.ConnectionRequest, claim uuid.UUID, claimed bool, err error)
	ReleaseGrant(ctx context.Context, projectID string, id, claim uuid.UUID) (held bool, err error)
}

const (
	// grantTime is what granting may take. The claim outlives it, so that nobody else makes a second trust meanwhile.
	grantTime  = time.Minute
	grantClaim = grantTime + 2*cleanTimeout
)

// Request stores what somebody asks a project to delegate. Whether that project exists is not looked at: the answer would tell anybody.
func (s service) Request(ctx context.Context, r domain.ConnectionRequest) (domain.ConnectionRequest, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return r, err
	}
	if left := r.Terms.End(now).Sub(now); left <= 0 || left > domain.MaxConnectionTime {
		last := now.Add(domain.MaxConnectionTime).UTC().Format(time.RFC3339)
		return r, apperr.InvalidField("expires_at", fmt.Sprintf("is %s: must be in the future, and before %s", r.Terms.End(now).Format(time.RFC3339), last))
	}
	if r.ID, err = uuid.NewV7(); err != nil {
		return r, err
	}
	if r, err = s.requests.Create(ctx, r); err == nil {
		s.wake("deliver-events")
	}
	return r, err
}

// ListRequests gives a page of the requests that the caller's project has sent or got; more says that there is another.
func (s service) ListRequests(
	ctx context.Context, who domain.Identity, q domain.ConnectionRequestQuery,
) (page []domain.ConnectionRequest, more bool, err error) {
	limit := q.Limit
	q.Limit++
	found, err := s.requests.List(ctx, who.ProjectID, q)
	return found[:min(limit, len(found))], len(found) > limit, err
}

// GetRequest reads a request that concerns the caller's project.
func (s service) GetRequest(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.ConnectionRequest, error) {
	return s.requests.Get(ctx, who.ProjectID, id)
}

// decidable is a request that the caller may grant or decline.
func (s service) decidable(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.ConnectionRequest, error) {
	r, err := s.GetRequest(ctx, who, id)
	if err == nil && (!r.Received(who) || !who.MayAct()) {
		err = apperr.New(apperr.Forbidden, "only who may do more than read in the project %s can grant or decline the request", r.ProjectID)
	}
	return r, err
}

// Decline ends a request that the caller's project got.
func (s service) Decline(ctx context.Context, who domain.Identity, id uuid.UUID, reason string) (domain.ConnectionRequest, error) {
	r, err := s.decidable(ctx, who, id)
	if err != nil {
		return r, err
	}
	if r, err = s.requests.Decline(ctx, who.ProjectID, id, who.UserID, reason); err == nil {
		s.wake("deliver-events")
	}
	return r, err
}

// Withdraw ends a request that the caller's project has sent.
func (s service) Withdraw(ctx context.Context, who domain.Identity, id uuid.UUID) error {
	r, err := s.GetRequest(ctx, who, id)
	if err != nil {
		return err
	}
	if !r.Sent(who) || !who.MayAct() {
		return apperr.New(apperr.Forbidden, "only who may do more than read in the project %s can withdraw the request", r.Requester.ProjectID)
	}
	if _, err = s.requests.Withdraw(ctx, who.ProjectID, id, who.UserID); err == nil {
		s.wake("deliver-events")
	}
	return err
}

// Grant makes the connection that a request asks for, or less of it. made is false when the same was granted before.
func (s service) Grant(
	ctx context.Context, who domain.Identity, token domain.Secret, id uuid.UUID, in granting,
) (c domain.Connection, made bool, err error) {
	r, err := s.decidable(ctx, who, id)
	if err != nil {
		return c, false, err
	}
	now, err := s.Now(ctx)
	if err != nil {
		return c, false, err
	}
	w, err := in.wish(who, r, now)
	if err != nil && r.Status == domain.RequestPending { // of one that is decided that is what the caller has to know
		return c, false, err
	}
	sum := in.sum()
	r, claim, claimed, err := s.requests.ClaimGrant(ctx, who.ProjectID, id, who.UserID, sum, grantClaim)
	if err != nil {
		return c, false, err
	}
	if !claimed {
		c, err = s.Get(ctx, who, r.ConnectionID)
		return c, false, err
	}
	w.grant = &domain.Grant{ProjectID: who.ProjectID, RequestID: id, Claim: claim, UserID: who.UserID, SHA256: sum}
	inTime, cancel := context.WithTimeout(ctx, grantTime)
	defer cancel()
	if c, err = s.Create(inTime, who, token, w); err == nil {
		return c, true, nil
	}
	if _, releaseErr := s.release(ctx, w); releaseErr != nil {
		slog.WarnContext(ctx, "a request can be granted again only when the claim is over", "request_id", id, "error", releaseErr)
	}
	return c, false, err
}

// sum tells one grant from another. The secret is not in it: what is stored of it could be guessed.
func (g granting) sum() []byte {
	g.Secret = nil
	text, _ := json.Marshal(g) //nolint:errchkjson,gosec // texts and numbers, and no secret
	sum := sha256.Sum256(text)
	return sum[:]
}

func (s service) release(ctx context.Context, w wish) (held bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	return s.requests.ReleaseGrant(ctx, w.grant.ProjectID, w.grant.RequestID, w.grant.Claim)
}

// notGranted is for a trust whose connection was not stored, as it seems. Postgres may have stored it and only the answer is lost: then it is
// granted. When that cannot be known the trust is left to run-connections, which deletes it if there is no connection.
func (s service) notGranted(ctx context.Context, who domain.Identity, cloud session, w wish, cause error) (domain.Connection, error) {
	held, err := s.release(ctx, w) // it waits for a transaction that is still at it
	if err != nil {
		slog.WarnContext(ctx, "a trust is left to run-connections", "connection_id", w.ID, "error", err)
		return domain.Connection{}, cause
	}
	if !held {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		stored, err := s.Get(ctx, who, w.ID)
		if err == nil {
			s.wake("deliver-events")
			return stored, nil
		}
		if apperr.CodeOf(err) != apperr.NotFound {
			return domain.Connection{}, cause
		}
	}
	s.giveUp(ctx, cloud, w.Connection)
	return domain.Connection{}, cause
}
