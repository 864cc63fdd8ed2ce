package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Actions are what run-connections is to do to instances. Those of one instance are done one at a time, the oldest
// first.
type Actions struct{ DB *DB }

const actionColumns = `
id, project_id, connection_id, instance_id, server_id, user_id, verb, hard, payload, status, problem, created_at, updated_at,
actor`

func scanAction(row pgx.CollectableRow) (a domain.DelegatedAction, err error) {
	err = row.Scan(&a.ID, &a.ProjectID, &a.ConnectionID, &a.InstanceID, &a.ServerID, &a.UserID, &a.Request.Action, &a.Request.Hard,
		&a.Payload, &a.Status, &a.Problem, &a.CreatedAt, &a.UpdatedAt, &a.Actor)
	a.CreatedAt, a.UpdatedAt = a.CreatedAt.UTC(), a.UpdatedAt.UTC()
	return a, err
}

// actionEventSQL writes the event of an action's new status, from rows of actions with previous_status.
const actionEventSQL = `
    insert into events (project_id, subject, seq, type, at, connection_id, data)
    select project_id, id::text, seq, '` + domain.ActionEvent + `', updated_at, connection_id,
           jsonb_strip_nulls(jsonb_build_object('action_id', id, 'instance_id', instance_id, 'connection_id', connection_id, 'action', verb,
                                                'status', status, 'previous_status', previous_status, 'fault', problem,
                                                'actor', actor || jsonb_build_object('action_id', id, 'action', verb)))
    from`

const createActionSQL = `
with used as (
    update connections set last_used_at = clock_timestamp() where project_id = $1 and id = $3 and status = 'active' and suspended_at is null returning id
), after as (
    insert into actions (project_id, id, connection_id, instance_id, server_id, user_id, verb, hard, payload, body_sha256, actor)
    select $1, $2, id, $4, $5, $6, $7, $8, $9, $11, $12 from used
    where (select count(*) from actions where connection_id = $3 and status = 'running') < $10
    returning *, null::text as previous_status
), event as (` + actionEventSQL + ` after)
select ` + actionColumns + ` from after`

// maxWaiting is how many actions of a connection may wait at once.
const maxWaiting = 1000

// Create stores an action, with its event. It is a Conflict when the connection has ended or was suspended meanwhile,
// or too many actions wait. One whose ID the caller gave is stored once: sent again it is the stored one, Repeated, and
// another request of the same ID is a Conflict.
func (a Actions) Create(ctx context.Context, wanted domain.DelegatedAction) (stored domain.DelegatedAction, err error) {
	if wanted.BodySHA256 == nil {
		return createAction(ctx, a.DB.pool, wanted)
	}
	err = retryDeadlock(func() error {
		return a.DB.inTx(ctx, func(tx pgx.Tx) error {
			stored, err = createOnce(ctx, tx, wanted)
			return err
		})
	})
	return stored, err
}

// One at a time of an ID, so that of two that come at once the second finds the first.
const lockActionSQL = `select pg_advisory_xact_lock(hashtextextended('action/' || $1 || '/' || $2::uuid, 0))`

func createOnce(ctx context.Context, tx pgx.Tx, wanted domain.DelegatedAction) (domain.DelegatedAction, error) {
	if _, err := tx.Exec(ctx, lockActionSQL, wanted.ProjectID, wanted.ID); err != nil {
		return wanted, err
	}
	stored, err := findStored(ctx, tx, wanted)
	if err != nil || stored.Repeated {
		return stored, err
	}
	taken, err := takenIn(ctx, tx, wanted.ProjectID, wanted.ID)
	if err != nil {
		return wanted, err
	}
	if len(taken) > 0 {
		return wanted, isTaken("id", nil)
	}
	stored, err = createAction(ctx, tx, wanted)
	if sqlState(err) == "23505" { // unique_violation: something else got the id, and its first event, just now
		return wanted, isTaken("id", err)
	}
	return stored, err
}

// FindStored is the action that the same request has stored before, Repeated; else it is wanted itself. Another request
// of its ID is a Conflict.
func (a Actions) FindStored(ctx context.Context, wanted domain.DelegatedAction) (domain.DelegatedAction, error) {
	return findStored(ctx, a.DB.pool, wanted)
}

func findStored(ctx context.Context, db rowsQuerier, wanted domain.DelegatedAction) (domain.DelegatedAction, error) {
	rows, _ := db.Query(ctx, "select "+actionColumns+`, connection_id = $3 and body_sha256 is not distinct from $4 from actions
where project_id = $1 and id = $2`, wanted.ProjectID, wanted.ID, wanted.ConnectionID, wanted.BodySHA256)
	var same bool
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (domain.DelegatedAction, error) {
		return scanAction(withMore{row, []any{&same}})
	})
	switch {
	case err != nil:
		return wanted, classify(err)
	case len(found) == 0:
		return wanted, nil
	case !same:
		return wanted, otherAction(wanted.ID)
	}
	found[0].Repeated = true
	return found[0], nil
}

func createAction(ctx context.Context, db rowsQuerier, wanted domain.DelegatedAction) (domain.DelegatedAction, error) {
	rows, _ := db.Query(ctx, createActionSQL, wanted.ProjectID, wanted.ID, wanted.ConnectionID, wanted.InstanceID, wanted.ServerID,
		wanted.UserID, wanted.Request.Action, wanted.Request.Hard, wanted.Payload, maxWaiting, wanted.BodySHA256, wanted.Actor)
	stored, err := pgx.CollectExactlyOneRow(rows, scanAction)
	if errors.Is(err, pgx.ErrNoRows) {
		return stored, apperr.New(apperr.Conflict, "the connection has ended, is suspended, or has %d actions that wait: that is as many as there may be", maxWaiting)
	}
	return stored, classify(err)
}

// Get reads an action of the connection.
func (a Actions) Get(ctx context.Context, filter domain.Filter, id uuid.UUID) (domain.DelegatedAction, error) {
	rows, _ := a.DB.pool.Query(ctx, "select "+actionColumns+" from actions where project_id = $1 and connection_id = $2 and id = $3",
		filter.ProjectID, filter.ConnectionID, id)
	found, err := pgx.CollectExactlyOneRow(rows, scanAction)
	if errors.Is(err, pgx.ErrNoRows) {
		return found, apperr.New(apperr.NotFound, "there is no action %s", id)
	}
	return found, classify(err)
}

const claimActionsSQL = `
update actions set claim_id = $3, claimed_until = clock_timestamp() + $4::interval
where (project_id, id) in (
    select project_id, id from actions a
    where a.project_id = $1 and a.connection_id = $2 and a.status = 'running' and coalesce(a.claimed_until, '-infinity') < clock_timestamp()
      and not exists (select from actions before where before.project_id = a.project_id and before.instance_id = a.instance_id
                      and before.status = 'running' and (before.created_at, before.id) < (a.created_at, a.id))
    order by a.claimed_until nulls first, a.created_at limit $5 for update skip locked
)
returning ` + actionColumns

// Claim takes actions of a connection that are to be done now, at most one of each instance: those first that nobody
// has worked on, or not for the longest.
func (a Actions) Claim(
	ctx context.Context, projectID string, connection uuid.UUID, claimFor time.Duration, limit int,
) (claim uuid.UUID, taken []domain.DelegatedAction, err error) {
	claim = uuid.New()
	rows, _ := a.DB.pool.Query(ctx, claimActionsSQL, projectID, connection, claim, claimFor, limit)
	taken, err = pgx.CollectRows(rows, scanAction)
	return claim, taken, classify(err)
}

// Release frees an action that goes on after a pause.
func (a Actions) Release(ctx context.Context, taken domain.DelegatedAction, claim uuid.UUID, pause time.Duration) error {
	_, err := a.DB.pool.Exec(ctx, "update actions set claimed_until = clock_timestamp() + $4::interval where project_id = $1 and id = $2 and claim_id = $3",
		taken.ProjectID, taken.ID, claim, pause)
	return classify(err)
}

const endActionSQL = `
with after as (
    update actions set status = $4, problem = $5, payload = null, seq = seq + 1, claim_id = null, claimed_until = null, updated_at = clock_timestamp()
    where project_id = $1 and id = $2 and claim_id = $3 and status = 'running'
    returning *, 'running' as previous_status
), event as (` + actionEventSQL + ` after)
select count(*) from after`

// End writes that an action is done, or why it failed, with its event; domain.ErrFenced when the claim has passed on.
func (a Actions) End(ctx context.Context, taken domain.DelegatedAction, claim uuid.UUID, problem *domain.Problem) error {
	status := domain.ActionDone
	if problem != nil {
		status = domain.ActionFailed
	}
	var n int
	err := retryDeadlock(func() error {
		return a.DB.pool.QueryRow(ctx, endActionSQL, taken.ProjectID, taken.ID, claim, status, problem).Scan(&n)
	})
	if err == nil && n == 0 {
		return domain.ErrFenced
	}
	return classify(err)
}

// withMore scans columns behind those that a scan function knows of.
type withMore struct {
	pgx.CollectableRow
	more []any
}

// Scan implements pgx.CollectableRow.
func (w withMore) Scan(dest ...any) error { return w.CollectableRow.Scan(append(dest, w.more...)...) }
