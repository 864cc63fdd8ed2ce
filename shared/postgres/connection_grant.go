package postgres

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

var claimRequestSQL = `
update connection_requests r set claim_id = $3, claimed_until = clock_timestamp() + $4::interval
where project_id = $1 and id = $2 and status = 'pending' and expires_at > clock_timestamp() and ` + unclaimed("r") + `
returning ` + consentColumns

// ClaimGrant claims a pending request that was sent to the project, to grant it. The claim is not acquired for a
// request that the user has granted already with the terms of sha256. Any other is a Conflict, with RetryAfter while
// somebody else grants it.
func (c ConnectionRequests) ClaimGrant(
	ctx context.Context, projectID string, id uuid.UUID, userID string, sha256 []byte, claimFor time.Duration,
) (r domain.ConnectionRequest, claim domain.Claim, err error) {
	claim = domain.NewClaim()
	r, err = oneRequest(ctx, c.DB.pool, claimRequestSQL, projectID, id, claim.ID, claimFor)
	if apperr.CodeOf(err) != apperr.NotFound {
		claim.Acquired = err == nil
		return r, claim, err
	}
	if r, err = c.Get(ctx, projectID, id); err != nil {
		return r, claim, err
	}
	if !r.Received(domain.Identity{ProjectID: projectID}) {
		return r, claim, noRequest(id)
	}
	if r.Status == domain.RequestGranted && r.DecidedBy == userID && bytes.Equal(r.GrantedSHA256, sha256) {
		return r, claim, nil
	}
	return r, claim, c.undecidable(ctx, r)
}

// undecidable says why a request cannot be granted, declined or withdrawn.
func (c ConnectionRequests) undecidable(ctx context.Context, r domain.ConnectionRequest) error {
	switch r.Status {
	case domain.RequestGranted:
		return apperr.New(apperr.Conflict, "the request is granted already: its connection is %s", r.ConnectionID)
	case domain.RequestPending:
		now, err := c.DB.Now(ctx)
		if err != nil {
			return err
		}
		if !now.Before(r.ExpiresAt) {
			return apperr.New(apperr.Conflict, "the request expired at %s: whoever asks has to ask again",
				r.ExpiresAt.Format(time.RFC3339))
		}
		busy := apperr.New(apperr.Conflict, "the request is being granted just now: look at it again")
		busy.RetryAfter = 2 * time.Second
		return busy
	}
	return apperr.New(apperr.Conflict, "the request is %s already", r.Status)
}

// ReleaseGrant ends the claim of a request that was not granted after all. released is false when the claim had ended:
// the request was granted, or somebody else has decided.
func (c ConnectionRequests) ReleaseGrant(
	ctx context.Context, projectID string, id uuid.UUID, claim domain.Claim,
) (released bool, err error) {
	n, err := exec(ctx, c.DB.pool, `
update connection_requests set `+due.ReleaseSQL+`
where project_id = $1 and id = $2 and claim_id = $3 and status = 'pending'`, projectID, id, claim.ID)
	return n == 1, err
}

const grantRequestSQL = `
with after as (
    update connection_requests
    set status = 'granted', connection_id = $4, decided_by = $5, granted_sha256 = $6,
        ` + due.ReleaseSQL + `, seq = seq + 1,
        updated_at = clock_timestamp()
    where project_id = $1 and id = $2 and claim_id = $3 and status = 'pending' and expires_at > clock_timestamp()
    returning *, 'pending' as previous_status
), event as (` + requestEventSQL + `)
select count(*) from after`

// finishGrant marks a request as granted in the transaction that stores its connection. It is a Conflict when the claim
// has ended; then no connection is stored either.
func finishGrant(ctx context.Context, tx pgx.Tx, g domain.Grant, connection uuid.UUID) error {
	n, err := queryValue[int](ctx, tx, grantRequestSQL, g.ProjectID, g.RequestID, g.Claim.ID, connection, g.UserID,
		g.SHA256)
	if err == nil && n == 0 {
		return apperr.New(apperr.Conflict, "the request %s was withdrawn, declined or has expired "+
			"while it was granted, or that took too long: look at it again", g.RequestID)
	}
	return err
}

const endRequestSQL = `
with after as (
    update connection_requests
    set status = $3, reason = $4, decided_by = $5, ` + due.ReleaseSQL + `, seq = seq + 1, updated_at = clock_timestamp()
    where (case when $3 = 'declined' then project_id else requester_project_id end) = $1 and id = $2
        and status = 'pending'
    returning *, 'pending' as previous_status
), event as (` + requestEventSQL + `)
select ` + consentColumns + ` from after`

// Decline ends a pending request that was sent to the project, also while somebody grants it.
func (c ConnectionRequests) Decline(
	ctx context.Context, projectID string, id uuid.UUID, userID, reason string,
) (domain.ConnectionRequest, error) {
	return c.end(ctx, projectID, id, domain.RequestDeclined, reason, userID)
}

// Withdraw ends a pending request that the project has sent, also while somebody grants it.
func (c ConnectionRequests) Withdraw(
	ctx context.Context, projectID string, id uuid.UUID, userID string,
) (domain.ConnectionRequest, error) {
	return c.end(ctx, projectID, id, domain.RequestWithdrawn, "", userID)
}

func (c ConnectionRequests) end(
	ctx context.Context, projectID string, id uuid.UUID, status domain.RequestStatus, reason, userID string,
) (r domain.ConnectionRequest, err error) {
	err = c.DB.writeEvents(ctx, func(q querier) error {
		r, err = oneRequest(ctx, q, endRequestSQL, projectID, id, status, reason, userID)
		return err
	})
	if !errors.Is(err, pgx.ErrNoRows) {
		return r, err
	}
	if r, err = c.Get(ctx, projectID, id); err != nil || r.Status == status && r.DecidedBy == userID &&
		r.Reason == reason {
		return r, err // a repeated request
	}
	return r, c.undecidable(ctx, r)
}

const expireRequestsSQL = `
with over as materialized (
    select id from connection_requests where status = 'pending' and expires_at <= now()
    order by expires_at limit 100 for update skip locked
), after as (
    update connection_requests r
    set status = 'expired', ` + due.ReleaseSQL + `, seq = r.seq + 1, updated_at = clock_timestamp()
    from over where r.id = over.id and r.status = 'pending'
    returning r.*, 'pending' as previous_status
), event as (` + requestEventSQL + `)
select count(*) from after`

// Expire ends requests of any project that nobody has decided in time, with their events, and says how many.
func (c ConnectionRequests) Expire(ctx context.Context) (int, error) {
	return writeValue[int](ctx, c.DB, expireRequestsSQL)
}

// Retire deletes requests of any project that ended longer ago than age.
func (c ConnectionRequests) Retire(ctx context.Context, age time.Duration) error {
	_, err := exec(ctx, c.DB.pool,
		"delete from connection_requests where status <> 'pending' and updated_at < now() - $1::interval", age)
	return err
}
