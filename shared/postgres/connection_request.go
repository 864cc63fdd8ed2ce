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

// ConnectionRequests are requests of programs and people to others to delegate.
type ConnectionRequests struct{ DB *DB }

const consentColumns = `
id, project_id, requester_project_id, requester_project_name, requester_user_id, requester_user_name, grantee, name,
    why, actions,
quota, limits, until, coalesce(duration, interval '0') as duration, status, reason, decided_by, connection_id,
    granted_sha256,
expires_at, created_at, updated_at`

// consentRow is a row of consentColumns.
type consentRow struct {
	domain.ConnectionRequest

	RequesterProjectID   string
	RequesterProjectName string
	RequesterUserID      string
	RequesterUserName    string

	Actions  []domain.Permission
	Quota    domain.ConnectionQuota
	Limits   domain.ConnectionLimits
	Until    time.Time
	Duration time.Duration
}

func (r consentRow) request() domain.ConnectionRequest {
	request := r.ConnectionRequest
	request.Requester = domain.Identity{
		ProjectID: r.RequesterProjectID, ProjectName: r.RequesterProjectName, UserID: r.RequesterUserID,
		UserName: r.RequesterUserName,
	}
	request.Terms = domain.Terms{
		Actions: r.Actions, Quota: r.Quota, Limits: r.Limits, ExpiresAt: r.Until,
		Duration: r.Duration,
	}
	return request
}

// oneRequest reads a request. Without one it returns NotFound, wrapping pgx.ErrNoRows.
func oneRequest(ctx context.Context, db querier, sql string, args ...any) (domain.ConnectionRequest, error) {
	row, err := queryOne[consentRow](ctx, db, sql, args...)
	return row.request(), err
}

// requestEventSQL writes the event of a request's new status from rows of after. A pending request concerns the project
// that it was sent to, an end concerns both. The event omits the requester's own words: receivers need not show them.
const requestEventSQL = `
    insert into events (project_id, subject, seq, type, at, data)
    select distinct p.id, a.id::text, a.seq, '` + domain.ConnectionRequestEvent + `', a.updated_at,
           jsonb_strip_nulls(jsonb_build_object('request_id', a.id, 'status', a.status, 'previous_status',
               a.previous_status,
               'project_id', a.project_id, 'requester_project_id', a.requester_project_id, 'requester_user_id',
                   a.requester_user_id,
               'connection_id', a.connection_id, 'reason', nullif(a.reason, '')))
    from after a, lateral (values (a.project_id), (a.requester_project_id)) p (id)
    where p.id = a.project_id or a.status <> 'pending'`

const (
	countRequestsFromSQL = `select count(*) from connection_requests
where requester_project_id = $1 and status = 'pending' and expires_at > clock_timestamp()`
	countRequestsToSQL = `select count(*) from connection_requests
where project_id = $1 and status = 'pending' and expires_at > clock_timestamp()`
	countRequestsOfDaySQL = `select count(*) from connection_requests
where requester_project_id = $1 and created_at > clock_timestamp() - interval '1 day'`

	insertRequestSQL = `
with after as (
    insert into connection_requests (id, project_id, requester_project_id, requester_project_name, requester_user_id,
        requester_user_name, grantee,
                                     name, why, actions, quota, until, duration, expires_at, limits)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, least(clock_timestamp() + $14::interval, $12), $15)
    returning *, null::text as previous_status
), event as (` + requestEventSQL + `)
select ` + consentColumns + ` from after`
)

// Create stores a pending request with its event. It expires after domain.RequestTime, or earlier with the terms that
// it requests.
func (c ConnectionRequests) Create(
	ctx context.Context, r domain.ConnectionRequest,
) (domain.ConnectionRequest, error) {
	return changeValue(ctx, c.DB, func(tx pgx.Tx) (domain.ConnectionRequest, error) {
		if err := roomForRequest(ctx, tx, r); err != nil {
			return r, err
		}
		return oneRequest(ctx, tx, insertRequestSQL, r.ID, r.ProjectID, r.Requester.ProjectID,
			r.Requester.ProjectName,
			r.Requester.UserID, r.Requester.UserName, r.Grantee, r.Name, r.Why, r.Terms.Actions, r.Terms.Quota,
			orNull(r.Terms.ExpiresAt), orNullDuration(r.Terms.Duration), domain.RequestTime, r.Terms.Limits)
	})
}

// roomForRequest rejects a request beyond the limits of its sender and its receiver, each under a lock.
func roomForRequest(ctx context.Context, tx pgx.Tx, r domain.ConnectionRequest) error {
	from, to := r.Requester.ProjectID, r.ProjectID
	if err := lockName(ctx, tx, "connection requests from", from); err != nil {
		return err
	}
	if err := lockName(ctx, tx, "connection requests to", to); err != nil {
		return err
	}
	if err := fits(ctx, tx, domain.MaxRequestsFrom, "pending requests from a project: withdraw one, or wait",
		countRequestsFromSQL, from); err != nil {
		return err
	}
	if err := fits(ctx, tx, domain.MaxRequestsTo, "pending requests to project "+to+": try again when some are decided",
		countRequestsToSQL, to); err != nil {
		return err
	}
	today, err := queryValue[int](ctx, tx, countRequestsOfDaySQL, from)
	if err != nil || today < domain.MaxRequestsADay {
		return err
	}
	limited := apperr.New(apperr.RateLimited,
		"limit reached: at most %d requests for connections from a project within 24 hours", today)
	limited.RetryAfter = time.Hour
	return limited
}

// Get reads a request that the caller's project has sent or got.
func (c ConnectionRequests) Get(ctx context.Context, projectID string, id uuid.UUID) (domain.ConnectionRequest, error) {
	r, err := oneRequest(ctx, c.DB.pool, "select "+consentColumns+`
from connection_requests where $1 in (project_id, requester_project_id) and id = $2`, projectID, id)
	return r, orNotFound(err, "there is no request %s for a connection", id)
}

const listConsentsSQL = ` = $1 and (cardinality($2::text[]) = 0 or status = any($2::text[]))
  and id > $3 order by id limit $4`

// List reads a page of the requests that a project has sent or got, the oldest first: ids are version 7, the order of
// time.
func (c ConnectionRequests) List(
	ctx context.Context, projectID string, q domain.ConnectionRequestQuery,
) ([]domain.ConnectionRequest, error) {
	whose := "requester_project_id"
	if q.Received {
		whose = "project_id"
	}
	rows, err := queryAll[consentRow](ctx, c.DB.pool,
		"select "+consentColumns+" from connection_requests where "+whose+listConsentsSQL,
		projectID, orEmpty(q.Statuses), q.Marker, q.Limit)
	found := make([]domain.ConnectionRequest, len(rows))
	for n, row := range rows {
		found[n] = row.request()
	}
	return found, err
}

var claimRequestSQL = `
update connection_requests r set claim_id = $3, claimed_until = clock_timestamp() + $4::interval
where project_id = $1 and id = $2 and status = 'pending' and expires_at > clock_timestamp() and ` + unclaimed("r") + `
returning ` + consentColumns

// ClaimGrant claims a pending request that was sent to the project, to grant it. The claim is not acquired for a
// request that the user has granted already with the terms of sha256. Any other is a Conflict, with RetryAfter while
// someone else grants it.
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
		return r, claim, apperr.New(apperr.NotFound, "there is no request %s for a connection", id)
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
			return apperr.New(apperr.Conflict, "the request expired at %s: create a new request",
				r.ExpiresAt.Format(time.RFC3339))
		}
		busy := apperr.New(apperr.Conflict, "the request is being granted just now: get it again")
		busy.RetryAfter = 2 * time.Second
		return busy
	}
	return apperr.New(apperr.Conflict, "the request is %s already", r.Status)
}

// ReleaseGrant ends the claim of a request that was not granted after all. released is false when the claim had ended:
// the request was granted, or someone else has decided.
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
			"while it was granted, or that took too long: get it again", g.RequestID)
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

// Decline ends a pending request that was sent to the project, also while someone grants it.
func (c ConnectionRequests) Decline(
	ctx context.Context, projectID string, id uuid.UUID, userID, reason string,
) (domain.ConnectionRequest, error) {
	return c.end(ctx, projectID, id, domain.RequestDeclined, reason, userID)
}

// Withdraw ends a pending request that the project has sent, also while someone grants it.
func (c ConnectionRequests) Withdraw(
	ctx context.Context, projectID string, id uuid.UUID, userID string,
) (domain.ConnectionRequest, error) {
	return c.end(ctx, projectID, id, domain.RequestWithdrawn, "", userID)
}

func (c ConnectionRequests) end(
	ctx context.Context, projectID string, id uuid.UUID, status domain.RequestStatus, reason, userID string,
) (r domain.ConnectionRequest, err error) {
	r, err = write(ctx, c.DB, oneRequest, endRequestSQL, projectID, id, status, reason, userID)
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

// Expire ends requests of any project that no one has decided in time, with their events, and says how many.
func (c ConnectionRequests) Expire(ctx context.Context) (int, error) {
	return write(ctx, c.DB, queryValue[int], expireRequestsSQL)
}

// Retire deletes requests of any project that ended longer ago than age.
func (c ConnectionRequests) Retire(ctx context.Context, age time.Duration) error {
	_, err := exec(ctx, c.DB.pool,
		"delete from connection_requests where status <> 'pending' and updated_at < now() - $1::interval", age)
	return err
}
