package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Actions are what run-connections is to do to instances. Those of one instance are done one at a time, the oldest
// first.
type Actions struct{ DB *DB }

const actionColumns = `
id, project_id, connection_id, instance_id, server_id, user_id, verb, hard, payload, status, problem, created_at,
updated_at, actor, arguments, image_id, outcome`

// actionRow is a row of actionColumns.
type actionRow struct {
	domain.DelegatedAction

	Verb   domain.Action
	Hard   bool
	IsSame bool // it was stored by the same request
}

func (r actionRow) action() domain.DelegatedAction {
	a := r.DelegatedAction
	a.Request = domain.ActionRequest{Action: r.Verb, Hard: r.Hard}
	return a
}

// oneAction is the action of the only row.
func oneAction(ctx context.Context, db querier, sql string, args ...any) (domain.DelegatedAction, error) {
	row, err := queryOne[actionRow](ctx, db, sql, args...)
	return row.action(), err
}

func allActions(ctx context.Context, db querier, sql string, args ...any) ([]domain.DelegatedAction, error) {
	rows, err := queryAll[actionRow](ctx, db, sql, args...)
	found := make([]domain.DelegatedAction, len(rows))
	for n, row := range rows {
		found[n] = row.action()
	}
	return found, err
}

// actionEventSQL writes the event of an action's new status, from rows of actions with previous_status.
const actionEventSQL = `
    insert into events (project_id, subject, seq, type, at, connection_id, data)
    select project_id, id::text, seq, '` + domain.ActionEvent + `', updated_at, connection_id,
           jsonb_strip_nulls(jsonb_build_object(
               'action_id', id, 'instance_id', instance_id, 'connection_id', connection_id, 'action', verb,
               'status', status, 'previous_status', previous_status, 'fault', problem,
               'image_id', nullif(image_id, ''),
               'actor', actor || jsonb_build_object('action_id', id, 'action', verb)))
    from`

const createActionSQL = `
with used as (
    update connections set last_used_at = clock_timestamp()
    where project_id = $1 and id = $3 and status = 'active' and suspended_at is null
    returning id
), after as (
    insert into actions (project_id, id, connection_id, instance_id, server_id, user_id, verb, hard, payload,
                         body_sha256, actor, arguments)
    select $1, $2, id, $4, $5, $6, $7, $8, $9, $11, $12, $13 from used
    where (select count(*) from actions where connection_id = $3 and status = 'running') < $10
    returning *, null::text as previous_status
), event as (` + actionEventSQL + ` after)
select ` + actionColumns + ` from after`

// maxWaiting is how many actions of a connection may wait concurrently.
const maxWaiting = 1000

// Create stores an action, with its event. It is a Conflict when the connection has ended or was suspended meanwhile,
// or too many actions wait. An action whose ID the caller gave is stored once: the same request gets the stored one,
// Repeated, and another request with the same ID is a Conflict.
func (a Actions) Create(ctx context.Context, action domain.DelegatedAction) (domain.DelegatedAction, error) {
	return changeValue(ctx, a.DB, func(tx pgx.Tx) (domain.DelegatedAction, error) {
		if action.BodySHA256 == nil {
			return createAction(ctx, tx, action)
		}
		return createOnce(ctx, tx, action)
	})
}

func createOnce(ctx context.Context, tx pgx.Tx, action domain.DelegatedAction) (domain.DelegatedAction, error) {
	// Of two requests with the same ID that come concurrently, the second finds the action of the first.
	if err := lockName(ctx, tx, "action", action.ProjectID, action.ID.String()); err != nil {
		return action, err
	}
	stored, err := findStored(ctx, tx, action)
	if err != nil || stored.Repeated {
		return stored, err
	}
	taken, err := isTaken(ctx, tx, action.ProjectID, action.ID)
	if err != nil {
		return action, err
	}
	if taken {
		return action, errTaken("id", nil)
	}
	stored, err = createAction(ctx, tx, action)
	if sqlState(err) == stateUnique { // something else has just got the id, and its first event
		return action, errTaken("id", err)
	}
	return stored, err
}

// FindStored is the action that the same request has stored before, Repeated, or else the action given. It is a
// Conflict when another request has stored one with its ID.
func (a Actions) FindStored(ctx context.Context, action domain.DelegatedAction) (domain.DelegatedAction, error) {
	return findStored(ctx, a.DB.pool, action)
}

func findStored(ctx context.Context, db querier, action domain.DelegatedAction) (domain.DelegatedAction, error) {
	row, found, err := queryFound[actionRow](ctx, db, "select "+actionColumns+`,
connection_id = $3 and body_sha256 is not distinct from $4 as is_same from actions where project_id = $1 and id = $2`,
		action.ProjectID, action.ID, action.ConnectionID, action.BodySHA256)
	switch {
	case err != nil || !found:
		return action, err
	case !row.IsSame:
		return action, otherAction(action.ID)
	}
	stored := row.action()
	stored.Repeated = true
	return stored, nil
}

func createAction(ctx context.Context, db querier, a domain.DelegatedAction) (domain.DelegatedAction, error) {
	row, found, err := queryFound[actionRow](ctx, db, createActionSQL, a.ProjectID, a.ID, a.ConnectionID, a.InstanceID,
		a.ServerID, a.UserID, a.Request.Action, a.Request.Hard, a.Payload, maxWaiting, a.BodySHA256, a.Actor,
		a.Arguments)
	if err == nil && !found {
		err = apperr.New(apperr.Conflict, "the connection has ended, is suspended, or has %d waiting actions, "+
			"which is the limit", maxWaiting)
	}
	return row.action(), err
}

// Get reads an action of the connection.
func (a Actions) Get(ctx context.Context, filter domain.Filter, id uuid.UUID) (domain.DelegatedAction, error) {
	found, err := oneAction(ctx, a.DB.pool, "select "+actionColumns+
		" from actions where project_id = $1 and connection_id = $2 and id = $3", filter.ProjectID, filter.ConnectionID,
		id)
	return found, orNotFound(err, "there is no action %s", id)
}

var claimActionsSQL = `
update actions set claim_id = $3, claimed_until = clock_timestamp() + $4::interval
where (project_id, id) in (
    select project_id, id from actions a
    where a.project_id = $1 and a.connection_id = $2 and a.status = 'running' and ` + unclaimed("a") + `
      and not exists (select from actions before
                      where before.project_id = a.project_id and before.instance_id = a.instance_id
                        and before.status = 'running' and (before.created_at, before.id) < (a.created_at, a.id))
    order by a.claimed_until nulls first, a.created_at limit $5 for update skip locked
)
returning ` + actionColumns

// Claim claims actions of a connection that are due, at most one of each instance. Those that were not claimed for the
// longest come first.
func (a Actions) Claim(
	ctx context.Context, projectID string, connection uuid.UUID, claimFor time.Duration, limit int,
) (domain.Claim, []domain.DelegatedAction, error) {
	claim := domain.NewClaim()
	claimed, err := allActions(ctx, a.DB.pool, claimActionsSQL, projectID, connection, claim.ID, claimFor, limit)
	claim.Acquired = len(claimed) > 0
	return claim, claimed, err
}

// Release ends the claim of an action after a pause, and stores its outcome so far.
func (a Actions) Release(
	ctx context.Context, action domain.DelegatedAction, claim domain.Claim, pause time.Duration,
) error {
	_, err := exec(ctx, a.DB.pool, `
update actions set claimed_until = clock_timestamp() + $4::interval, outcome = $5
where project_id = $1 and id = $2 and claim_id = $3`, action.ProjectID, action.ID, claim.ID, pause, action.Outcome)
	return err
}

const endActionSQL = `
with after as (
    update actions
    set status = $4, problem = $5, payload = null, image_id = $6, outcome = $7, seq = seq + 1, ` + due.ReleaseSQL + `,
        updated_at = clock_timestamp()
    where project_id = $1 and id = $2 and claim_id = $3 and status = 'running'
    returning *, 'running' as previous_status
), event as (` + actionEventSQL + ` after)
select count(*) from after`

var abandonActionSQL = `
with after as (
    update actions a
    set status = 'failed', problem = $3, payload = null, seq = seq + 1, ` + due.ReleaseSQL + `,
        updated_at = clock_timestamp()
    where project_id = $1 and id = $2 and status = 'running' and ` + unclaimed("a") + `
    returning *, 'running' as previous_status
), event as (` + actionEventSQL + ` after)
select count(*) from after`

// Abandon ends a running action that no replica works on, with its event. One that a replica has claimed stays, because
// its call to Nova may still arrive, and so does one that has ended.
func (a Actions) Abandon(ctx context.Context, action domain.DelegatedAction, problem *domain.Problem) error {
	_, err := write(ctx, a.DB, queryValue[int64], abandonActionSQL, action.ProjectID, action.ID, problem)
	return err
}

// End records that an action is done, or why it failed, with its event. It is domain.ErrFenced when another replica has
// claimed the action since.
func (a Actions) End(
	ctx context.Context, action domain.DelegatedAction, claim domain.Claim, problem *domain.Problem,
) error {
	status := domain.ActionDone
	if problem != nil {
		status = domain.ActionFailed
	}
	return fenced(write(ctx, a.DB, queryValue[int64], endActionSQL, action.ProjectID, action.ID, claim.ID, status,
		problem, action.ImageID, action.Outcome))
}

// connectingSQL selects the running actions that connect the server ($2): all of them, or those of a connection ($3).
const connectingSQL = `
select ` + actionColumns + ` from actions
where project_id = $1 and server_id = $2 and verb = '` + string(domain.Connect) + `' and status = 'running'
  and ($3::uuid is null or connection_id = $3)
order by created_at, id`

// Connect stores an action that connects a server through a connection, with its event. A zero InstanceID is any. known
// is the server's instance when the connection manages it already; then nothing is stored. While an action of the
// connection connects the server, it is that action. An InstanceID is a Conflict when it is taken, or differs from the
// one of the server's instance or of that action.
func (a Actions) Connect(
	ctx context.Context, action domain.DelegatedAction,
) (known *domain.Instance, stored domain.DelegatedAction, err error) {
	err = a.DB.change(ctx, func(tx pgx.Tx) (err error) {
		known, stored, err = createConnect(ctx, tx, action)
		return err
	})
	return known, stored, err
}

func createConnect(
	ctx context.Context, tx pgx.Tx, action domain.DelegatedAction,
) (known *domain.Instance, stored domain.DelegatedAction, err error) {
	known, err = lockServer(ctx, tx, action.ProjectID, action.ServerID, action.InstanceID)
	if err != nil || known != nil && known.ConnectionID == action.ConnectionID && known.DisconnectedAt.IsZero() {
		return known, stored, err
	}
	running, err := allActions(ctx, tx, connectingSQL, action.ProjectID, action.ServerID, action.ConnectionID)
	switch {
	case err != nil:
		return nil, stored, err
	case len(running) > 0 && (known == nil || running[0].InstanceID == known.ID):
		return nil, running[0], sameInstance(action.InstanceID, running[0].InstanceID)
	case known != nil:
		action.InstanceID = known.ID
	case action.InstanceID == uuid.Nil:
		action.InstanceID = uuid.Must(uuid.NewV7())
	default:
		if taken, err := isTaken(ctx, tx, action.ProjectID, action.InstanceID); err != nil {
			return nil, stored, err
		} else if taken {
			return nil, stored, errTaken("id", nil)
		}
	}
	stored, err = createAction(ctx, tx, action)
	return nil, stored, err
}

// KeyedActions are actions with a project's own token that their callers gave an id. One replica at a time works on an
// action (claim.go).
type KeyedActions struct{ DB *DB }

var (
	// The first attempt inserts the row. A later one claims it when the claim has expired without a result.
	beginKeyedSQL = `
insert into keyed_actions as k (project_id, id, body_sha256, claim_id, claimed_until)
values ($1, $2, $3, $4, clock_timestamp() + $5::interval)
on conflict (project_id, id) do update set claim_id = excluded.claim_id, claimed_until = excluded.claimed_until
where k.body_sha256 = excluded.body_sha256 and k.result is null and ` + unclaimed("k") + `
returning xmax <> 0 as resumed, created_at, deployment_id as deployment`

	findKeyedSQL = `
select body_sha256 as hash, result, greatest(claimed_until - clock_timestamp(), interval '0') as claimed_for
from keyed_actions where project_id = $1 and id = $2`
)

// Begin claims the action for the time given, or gives its Result if it is done. It is a Conflict when the id belongs
// to another action, and one with RetryAfter while another replica works on it.
func (k KeyedActions) Begin(
	ctx context.Context, key domain.ActionKey, claimFor time.Duration,
) (domain.KeyedAction, error) {
	claim := domain.NewClaim()
	action, result, err := begin[domain.KeyedAction](ctx, k.DB.pool, keyed{
		beginSQL: beginKeyedSQL, args: []any{key.ProjectID, key.ID, key.BodySHA256, claim.ID, claimFor},
		hash: key.BodySHA256, findSQL: findKeyedSQL, other: otherAction(key.ID), full: func() error { return nil },
		busy: fmt.Sprintf("action %s is in progress: send the same request again", key.ID),
	})
	action.ActionKey, action.Claim = key, claim
	if err == nil && result != nil {
		err = json.Unmarshal(result, &action.Result)
	}
	return action, err
}

func otherAction(id uuid.UUID) error {
	return apperr.New(apperr.Conflict, "id %s belongs to another action: the same id needs the same request", id)
}

// RecordDeployment records the deployment that Nova is about to rebuild the server for.
func (k KeyedActions) RecordDeployment(
	ctx context.Context, action domain.KeyedAction, deployment uuid.UUID,
) error {
	return k.write(ctx, "update keyed_actions set deployment_id = $4 where "+keyedClaimedSQL, action, deployment)
}

// Finish records the result, which later requests for the action get.
func (k KeyedActions) Finish(ctx context.Context, action domain.KeyedAction, result domain.ActionResult) error {
	const sql = "update keyed_actions set result = $4, " + due.ReleaseSQL + " where " + keyedClaimedSQL
	return k.write(ctx, sql, action, result)
}

// Abandon deletes an action that was rejected: nothing was done, and the id is free.
func (k KeyedActions) Abandon(ctx context.Context, action domain.KeyedAction) error {
	return k.write(ctx, "delete from keyed_actions where "+keyedClaimedSQL, action)
}

// Release ends the claim after a pause. The next attempt finds out whether Nova accepted the action.
func (k KeyedActions) Release(ctx context.Context, action domain.KeyedAction, pause time.Duration) error {
	return k.write(ctx, "update keyed_actions set claimed_until = clock_timestamp() + $4::interval where "+
		keyedClaimedSQL, action, pause)
}

const keyedClaimedSQL = "project_id = $1 and id = $2 and claim_id = $3 and result is null"

// write is domain.ErrFenced when another replica has claimed the action since.
func (k KeyedActions) write(ctx context.Context, sql string, action domain.KeyedAction, more ...any) error {
	args := append([]any{action.ProjectID, action.ID, action.Claim.ID}, more...)
	return fenced(exec(ctx, k.DB.pool, sql, args...))
}
