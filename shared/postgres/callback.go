package postgres

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// Callbacks are webhook subscriptions as their owners see them. It writes their secrets and never reads them.
type Callbacks struct{ DB *DB }

// callbackColumns are what owners see of their callbacks.
const callbackColumns = `
id, project_id, user_id, url, events, instance_id, order_id, coalesce(of_project, project_id) as of_project,
    connection_id,
status, reason, case when previous_until > now() then previous_until end as previous_until,
coalesce(allowed_rate, 0) as allowed_rate, created_at, updated_at`

// oneCallback reads the callback of this id; NotFound when the project has none.
func oneCallback(
	ctx context.Context, db querier, sql string, projectID string, id uuid.UUID, more ...any,
) (domain.Callback, error) {
	c, err := queryOne[domain.Callback](ctx, db, sql, append([]any{projectID, id}, more...)...)
	return c, orNotFound(err, "there is no callback %s", id)
}

const (
	countCallbacksSQL       = `select count(*) from callbacks where project_id = $1 and status <> 'gone'`
	countCallbacksOfSameSQL = countCallbacksSQL + `
and instance_id is not distinct from $2 and order_id is not distinct from $3`

	subjectKnownSQL = `
select $2::uuid is null or exists (select from instances where project_id = $1 and id = $2
                                   and connection_id is not distinct from coalesce($4, connection_id)),
       $3::uuid is null or exists (select from orders where project_id = $1 and id = $3
                                   and connection_id is not distinct from coalesce($4, connection_id))`

	insertCallbackSQL = `
insert into callbacks (project_id, id, user_id, url, events, instance_id, order_id, status, secret, of_project,
    connection_id, not_before)
values ($1, $2, $3, $4, $5, $6, $7, 'pending', $8, $9, $10, (
    select used_up - interval '1 minute' from rate_limits
    where name = 'handshake' and source = $1 and used_up > clock_timestamp() + interval '1 minute'))
returning ` + callbackColumns
)

// Create stores a pending callback. Its instance or order must belong to its project. With a connection they must
// belong to OfProject, the connection's project, and run through the connection.
func (c Callbacks) Create(ctx context.Context, callback domain.Callback) (domain.Callback, error) {
	return changeValue(ctx, c.DB, func(tx pgx.Tx) (domain.Callback, error) {
		return insertCallback(ctx, tx, callback)
	})
}

// insertCallback stores a callback in a transaction, which may just have stored its order.
func insertCallback(ctx context.Context, tx pgx.Tx, c domain.Callback) (domain.Callback, error) {
	if err := roomForCallback(ctx, tx, c); err != nil {
		return c, err
	}
	instance, order, connection := orNullID(c.InstanceID), orNullID(c.OrderID), orNullID(c.ConnectionID)
	ofProject := cmp.Or(c.OfProject, c.ProjectID)
	var knowsInstance, knowsOrder bool
	err := tx.QueryRow(ctx, subjectKnownSQL, ofProject, instance, order, connection).Scan(&knowsInstance, &knowsOrder)
	switch {
	case err != nil:
		return c, err
	case !knowsInstance:
		return c, apperr.Malformed("instance_id", "the id of an instance of "+where(c), c.InstanceID.String())
	case !knowsOrder:
		return c, apperr.Malformed("order_id", "the id of an order of "+where(c), c.OrderID.String())
	}
	if err := take(ctx, tx, handshakes, c.ProjectID, "this project"); err != nil {
		return c, err
	}
	return queryOne[domain.Callback](ctx, tx, insertCallbackSQL, c.ProjectID, c.ID, c.UserID, c.URL, orEmpty(c.Events),
		instance, order, c.Secret, ofProject, connection)
}

// where names the owner that a callback's instance or order must have.
func where(c domain.Callback) string {
	if c.ConnectionID != uuid.Nil {
		return "this connection"
	}
	return "this project"
}

// roomForCallback is a Conflict when the callback's subject has domain.MaxCallbacks already, or its project c.Most.
func roomForCallback(ctx context.Context, tx pgx.Tx, c domain.Callback) error {
	if err := lockName(ctx, tx, "callbacks", c.ProjectID); err != nil {
		return err
	}
	err := fits(ctx, tx, domain.MaxCallbacks, "callbacks of the same instance or order", countCallbacksOfSameSQL,
		c.ProjectID, orNullID(c.InstanceID), orNullID(c.OrderID))
	if err != nil {
		return err
	}
	return fits(ctx, tx, c.Most, "callbacks in a project: delete some", countCallbacksSQL, c.ProjectID)
}

// Get reads a callback of the project.
func (c Callbacks) Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Callback, error) {
	return oneCallback(ctx, c.DB.pool, "select "+callbackColumns+" from callbacks where project_id = $1 and id = $2",
		projectID, id)
}

// ListByIDs reads those of the project's callbacks that have one of the ids.
func (c Callbacks) ListByIDs(ctx context.Context, projectID string, ids []uuid.UUID) ([]domain.Callback, error) {
	return queryAll[domain.Callback](ctx, c.DB.pool,
		"select "+callbackColumns+" from callbacks where project_id = $1 and id = any($2)", projectID, ids)
}

// List reads a page of the project's callbacks, the oldest first; marker is the last id of the previous page (zero =
// none).
func (c Callbacks) List(ctx context.Context, projectID string, limit int, marker uuid.UUID) ([]domain.Callback, error) {
	return queryAll[domain.Callback](ctx, c.DB.pool, // ids are version 7: the order of time
		"select "+callbackColumns+" from callbacks where project_id = $1 and id > $2 order by id limit "+
			"$3", projectID, marker, limit)
}

const (
	lockCallbackSQL = `select ` + callbackColumns +
		` from callbacks where project_id = $1 and id = $2 for no key update`

	// With $7 the receiver is asked for its consent immediately; an answer to an earlier handshake no longer counts.
	changeCallbackSQL = `
with before as (
    select project_id, id, status from callbacks where project_id = $1 and id = $2
), after as (
    update callbacks c
    set url = $3, events = $4, status = $5, reason = $6, seq = c.seq + ($5 <> b.status)::int,
        updated_at = clock_timestamp(),
        failures = case when $7 then 0 else c.failures end, failing_since = case when not $7 then c.failing_since end,
        not_before = case when not $7 then c.not_before end, claim_id = case when not $7 then c.claim_id end,
        claimed_until = case when not $7 then c.claimed_until end
    from before b where c.project_id = b.project_id and c.id = b.id
    returning c.*, b.status as previous_status
), event as (` + callbackEventSQL + ` after where status <> previous_status)
select ` + callbackColumns + ` from after`

	// Failing deliveries are retried immediately.
	ofCallback = `c.project_id = $1 and c.id = $2`
)

// Change makes its owner's change to a callback and writes the event of its new status. needsConsent reports whether
// its receiver has to be asked for its consent.
func (c Callbacks) Change(
	ctx context.Context, projectID string, id uuid.UUID, change domain.CallbackChange,
) (changed domain.Callback, needsConsent bool, err error) {
	err = c.DB.change(ctx, func(tx pgx.Tx) error {
		if changed, err = oneCallback(ctx, tx, lockCallbackSQL, projectID, id); err != nil {
			return err
		}
		was := changed.Status
		if needsConsent, err = changed.Apply(change); err != nil {
			return err
		}
		if was == domain.CallbackGone && changed.Status != was { // a gone callback does not count
			changed.Most = change.Most
			if err = roomForCallback(ctx, tx, changed); err != nil {
				return err
			}
		}
		changed, err = oneCallback(ctx, tx, changeCallbackSQL, projectID, id, changed.URL, changed.Events,
			changed.Status, changed.Reason, needsConsent)
		if err != nil || !needsConsent {
			return err
		}
		return endFreePauses(ctx, tx, ofCallback, projectID, id)
	})
	if err == nil && needsConsent {
		if err := c.DB.endPauses(ctx, ofCallback, projectID, id); err != nil { // the change is made
			slog.WarnContext(ctx, "some deliveries keep their pause", "callback_id", id, "error", err)
		}
	}
	return changed, needsConsent, err
}

// A gone callback gets no deliveries and no new events.
const retireCallbackSQL = `
update callbacks set status = 'gone', ` + due.ReleaseSQL + ` where project_id = $1 and id = $2`

// lockAllSQL locks a callback with all that is deleted with it, or fails immediately when another transaction has a
// part of it.
var lockAllSQL = []string{
	`select from callbacks where project_id = $1 and id = $2 for update nowait`,
	`select from streams where project_id = $1 and callback_id = $2 for update nowait`,
	`select from deliveries where project_id = $1 and callback_id = $2 for update nowait`,
}

// How often Delete tries to get all locks together, and the pause between two tries.
const (
	deleteTries = 100
	deletePause = 50 * time.Millisecond
)

// Delete removes a callback and all that waits for it. Those who write events, deliver and clean up lock its parts each
// in an order of their own, so Delete never waits for one lock while it holds another.
func (c Callbacks) Delete(ctx context.Context, projectID string, id uuid.UUID) error {
	retired, err := exec(ctx, c.DB.pool, retireCallbackSQL, projectID, id)
	if err != nil {
		return err
	}
	if retired == 0 {
		return apperr.New(apperr.NotFound, "there is no callback %s", id)
	}
	for range deleteTries {
		if err = c.delete(ctx, projectID, id); sqlState(err) != stateLockNotGranted || !flow.Sleep(ctx, deletePause) {
			return err
		}
	}
	return err
}

func (c Callbacks) delete(ctx context.Context, projectID string, id uuid.UUID) error {
	return c.DB.change(ctx, func(tx pgx.Tx) error {
		for _, sql := range lockAllSQL {
			if _, err := tx.Exec(ctx, sql, projectID, id); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "delete from callbacks where project_id = $1 and id = $2", projectID, id)
		return err
	})
}

// Every secret that a receiver may still have signs until the last overlap has ended.
const rotateSQL = `
update callbacks
set older_secrets = case when $4::interval > interval '0' and previous_until > now()
                         then array_append(older_secrets, previous_secret) else '{}' end,
    previous_secret = case when $4::interval > interval '0' then secret end,
    previous_until = case when $4::interval > interval '0'
                          then greatest(now() + $4::interval, previous_until) end,
    secret = $3, updated_at = clock_timestamp()
where project_id = $1 and id = $2
  and ($4::interval = interval '0' or cardinality(older_secrets) < $5 or previous_until <= now())
returning ` + callbackColumns

// Rotate gives a callback another encrypted secret. For the time of overlap deliveries are signed with those before it,
// too: another rotation meanwhile, such as a repeated request, ends none of them. It is a Conflict while
// domain.MaxOlderSecrets do so.
func (c Callbacks) Rotate(
	ctx context.Context, projectID string, id uuid.UUID, secret []byte, overlap time.Duration,
) (domain.Callback, error) {
	rotated, err := oneCallback(ctx, c.DB.pool, rotateSQL, projectID, id, secret, overlap, domain.MaxOlderSecrets)
	if apperr.CodeOf(err) != apperr.NotFound {
		return rotated, err
	}
	before, err := c.Get(ctx, projectID, id)
	if err == nil {
		err = apperr.New(apperr.Conflict, "the callback was rotated %d times, and all of its secrets sign until %s: "+
			"wait, or send the overlap 0s, which ends them immediately", domain.MaxOlderSecrets+1,
			before.PreviousUntil.UTC().Format(time.RFC3339))
	}
	return before, err
}

const signingRows = `(
    select unnest(array[secret] || case when previous_until > now() then array[previous_secret] || older_secrets
                                        else '{}' end) as secret
    from callbacks where status <> 'gone' and project_id <> ''
) signing where secret is not null`

// CallbackKeys lists the keys that callbacks' secrets are encrypted with, those that still sign beside a new one
// included.
func (db *DB) CallbackKeys(ctx context.Context) ([]domain.KeyUse, error) {
	return keyUses(ctx, db, signingRows, "secret")
}

// keyUses counts encrypted secrets by the id of their key, which they begin with.
func keyUses(ctx context.Context, db *DB, rows, column string) ([]domain.KeyUse, error) {
	return queryAll[domain.KeyUse](ctx, db.pool,
		"select encode(substring("+column+" for 8), 'hex') as key, count(*) as secrets from "+rows+
			" group by 1 order by 1")
}

// handshakes limits the first handshakes of a project's callbacks, those of deleted callbacks included, to 10 a second.
// insertCallbackSQL delays those beyond a burst of 600. A callback that would wait for an hour is rejected.
var handshakes = apperr.Limit{Name: "handshake", Quota: 36_000, Window: time.Hour}

var claimHandshakesSQL = `
with pending as materialized (
    select project_id, id, coalesce(not_before, '-infinity') as since, ` + due.Unclaimed("c", "now()") + ` as is_due
    from callbacks c where status = 'pending' and coalesce(not_before, '-infinity') <= now()
), under_way as (
    select project_id, count(*) as n from pending where not is_due group by project_id
), due as materialized (
    select p.project_id, p.id, p.since,
        row_number() over (partition by p.project_id order by p.since) + coalesce(u.n, 0) as turn
    from pending p left join under_way u on u.project_id = p.project_id where p.is_due
)
update callbacks set claim_id = $1, claimed_until = now() + $2::interval
where (project_id, id) in (
    select c.project_id, c.id from due d join callbacks c on c.project_id = d.project_id and c.id = d.id
    where c.status = 'pending' and ` + due.Unclaimed("c", "now()") + `
    order by d.turn, d.since limit $3 for no key update of c skip locked
)
returning claim_id, project_id, id, url, failures as tries`

// ClaimHandshakes claims callbacks whose receivers have to be asked for their consent. Projects take turns: the one
// with the fewest handshakes under way is first, however many callbacks another has. It sets the Claim and Tries of
// an attempt, and its callback's ProjectID, ID and URL.
func (o Outbox) ClaimHandshakes(ctx context.Context, limit int, claimFor time.Duration) ([]domain.Attempt, error) {
	rows, err := queryAll[attemptRow](ctx, o.DB.pool, claimHandshakesSQL, uuid.New(), claimFor, limit)
	return attempts(rows), err
}

const verifiedSQL = `
with after as (
    update callbacks
    set status = 'verified', reason = '', allowed_rate = nullif($4, 0), seq = seq + 1, updated_at = now(),
        failures = 0, failing_since = null, not_before = null, ` + due.ReleaseSQL + `
    where project_id = $1 and id = $2 and claim_id = $3 and status = 'pending'
    returning *, 'pending' as previous_status
), event as (` + callbackEventSQL + ` after)
select status from after`

// MarkVerified records that the receiver consented to rate deliveries a minute (0 = any). It is domain.ErrFenced when
// another replica has the claim, or the callback was changed.
func (o Outbox) MarkVerified(ctx context.Context, a domain.Attempt, rate int) error {
	_, err := o.handshake(ctx, verifiedSQL, a, rate)
	return err
}

const unverifiedSQL = `
with before as (
    select * from callbacks where project_id = $1 and id = $2 and claim_id = $3 and status = 'pending' for no key update
), after as (
    update callbacks c
    set status = n.status, reason = $4, seq = c.seq + (n.status <> 'pending')::int, updated_at = now(),
        failures = c.failures + 1, failing_since = coalesce(c.failing_since, now()),
        not_before = least(now() + $5::interval, coalesce(c.failing_since, now()) + $6::interval),
        ` + due.ReleaseSQL + `
    from (select *, case when coalesce(failing_since, now()) + $6::interval <= now() then 'suspended'
        else 'pending' end as next
          from before) b,
         lateral (select b.next as status) n
    where c.project_id = b.project_id and c.id = b.id
    returning c.*, b.status as previous_status
), event as (` + callbackEventSQL + ` after where status <> previous_status)
select status from after`

// MarkUnverified records that the receiver did not consent, and requests consent again after the pause. A callback
// whose receiver has not consented for longer than tryFor is suspended, as the status says.
func (o Outbox) MarkUnverified(
	ctx context.Context, a domain.Attempt, reason string, pause, tryFor time.Duration,
) (domain.CallbackStatus, error) {
	return o.handshake(ctx, unverifiedSQL, a, reason, pause, tryFor)
}

func (o Outbox) handshake(
	ctx context.Context, sql string, a domain.Attempt, more ...any,
) (status domain.CallbackStatus, err error) {
	args := append([]any{a.Callback.ProjectID, a.Callback.ID, a.Claim.ID}, more...)
	status, err = write(ctx, o.DB, queryValue[domain.CallbackStatus], sql, args...)
	return status, ifNone(err, domain.ErrFenced)
}
