package postgres

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Callbacks are who gets a project's events, as their owners see them. Their secrets are written here and never read.
type Callbacks struct{ DB *DB }

// callbackColumns are what their owners see of callbacks.
const callbackColumns = `
id, project_id, user_id, url, events, coalesce(instance_id, '00000000-0000-0000-0000-000000000000'),
coalesce(order_id, '00000000-0000-0000-0000-000000000000'), coalesce(of_project, project_id),
coalesce(connection_id, '00000000-0000-0000-0000-000000000000'), status, reason,
case when previous_until > now() then previous_until else '0001-01-01' end, coalesce(allowed_rate, 0), created_at, updated_at`

func scanCallback(row pgx.CollectableRow) (c domain.Callback, err error) {
	err = row.Scan(&c.ID, &c.ProjectID, &c.UserID, &c.URL, &c.Events, &c.InstanceID, &c.OrderID, &c.OfProject, &c.ConnectionID, &c.Status, &c.Reason,
		&c.PreviousUntil, &c.AllowedRate, &c.CreatedAt, &c.UpdatedAt)
	c.PreviousUntil, c.CreatedAt, c.UpdatedAt = c.PreviousUntil.UTC(), c.CreatedAt.UTC(), c.UpdatedAt.UTC()
	return c, err
}

func noCallback(id uuid.UUID) error {
	return apperr.New(apperr.NotFound, "there is no callback %s", id)
}

// oneCallback collects the row of a callback; NotFound when the project has none of that id.
func oneCallback(rows pgx.Rows, id uuid.UUID) (domain.Callback, error) {
	c, err := pgx.CollectExactlyOneRow(rows, scanCallback)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, noCallback(id)
	}
	return c, classify(err)
}

const (
	// One at a time in a project, so that two cannot both be the last that fits.
	lockCallbacksSQL = `select pg_advisory_xact_lock(hashtextextended('callbacks/' || $1, 0))`

	callbackFitsSQL = `
select count(*) < $2 from callbacks
where project_id = $1 and status <> 'gone' and instance_id is not distinct from $3 and order_id is not distinct from $4`

	subjectKnownSQL = `
select $2::uuid is null or exists (select from instances where project_id = $1 and id = $2 and connection_id is not distinct from coalesce($4, connection_id)),
       $3::uuid is null or exists (select from orders where project_id = $1 and id = $3 and connection_id is not distinct from coalesce($4, connection_id))`

	insertCallbackSQL = `
insert into callbacks (project_id, id, user_id, url, events, instance_id, order_id, status, secret, of_project, connection_id)
values ($1, $2, $3, $4, $5, $6, $7, 'pending', $8, $9, $10)
returning ` + callbackColumns
)

// Create stores a callback, pending. The instance or the order must be its project's; with a connection it must be of OfProject, which
// is the connection's, and run through the connection.
func (c Callbacks) Create(ctx context.Context, callback domain.Callback) (stored domain.Callback, err error) {
	err = c.DB.inTx(ctx, func(tx pgx.Tx) error {
		stored, err = insertCallback(ctx, tx, callback)
		return err
	})
	return stored, err
}

// insertCallback stores a callback in a transaction that may have made its order just before.
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
	if c.Events == nil {
		c.Events = []string{}
	}
	rows, _ := tx.Query(ctx, insertCallbackSQL, c.ProjectID, c.ID, c.UserID, c.URL, c.Events, instance, order, c.Secret, ofProject, connection)
	return pgx.CollectExactlyOneRow(rows, scanCallback)
}

// where is where the instance or order of a callback is looked for.
func where(c domain.Callback) string {
	if c.ConnectionID != uuid.Nil {
		return "this connection"
	}
	return "this project"
}

// roomForCallback is a Conflict when there are as many callbacks for the same as there may be.
func roomForCallback(ctx context.Context, tx pgx.Tx, c domain.Callback) error {
	if _, err := tx.Exec(ctx, lockCallbacksSQL, c.ProjectID); err != nil {
		return err
	}
	var fits bool
	err := tx.QueryRow(ctx, callbackFitsSQL, c.ProjectID, domain.MaxCallbacks, orNullID(c.InstanceID), orNullID(c.OrderID)).Scan(&fits)
	if err == nil && !fits {
		err = apperr.New(apperr.Conflict, "there are %d callbacks for the same already: that is as many as there may be", domain.MaxCallbacks)
	}
	return err
}

func orNullID(id uuid.UUID) uuid.NullUUID { return uuid.NullUUID{UUID: id, Valid: id != uuid.Nil} }

// Get reads a callback of the project.
func (c Callbacks) Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Callback, error) {
	rows, _ := c.DB.pool.Query(ctx, "select "+callbackColumns+" from callbacks where project_id = $1 and id = $2", projectID, id)
	return oneCallback(rows, id)
}

// Some reads those of the project's callbacks that have one of the ids.
func (c Callbacks) Some(ctx context.Context, projectID string, ids []uuid.UUID) ([]domain.Callback, error) {
	rows, _ := c.DB.pool.Query(ctx, "select "+callbackColumns+" from callbacks where project_id = $1 and id = any($2)", projectID, ids)
	found, err := pgx.CollectRows(rows, scanCallback)
	return found, classify(err)
}

// List reads a page of the project's callbacks, the oldest first; marker is the last id already seen (zero = none).
func (c Callbacks) List(ctx context.Context, projectID string, limit int, marker uuid.UUID) ([]domain.Callback, error) {
	rows, _ := c.DB.pool.Query(ctx, "select "+callbackColumns+" from callbacks where project_id = $1 and id > $2 order by id limit $3",
		projectID, marker, limit) // ids are version 7: the order of time
	found, err := pgx.CollectRows(rows, scanCallback)
	return found, classify(err)
}

const (
	lockCallbackSQL = `select ` + callbackColumns + ` from callbacks where project_id = $1 and id = $2 for no key update`

	// A receiver that is to be asked for its consent is asked at once, and whoever asks it already asks in vain.
	changeCallbackSQL = `
with before as (
    select project_id, id, status from callbacks where project_id = $1 and id = $2
), after as (
    update callbacks c
    set url = $3, events = $4, status = $5, reason = $6, seq = c.seq + ($5 <> b.status)::int, updated_at = clock_timestamp(),
        failures = case when $7 then 0 else c.failures end, failing_since = case when not $7 then c.failing_since end,
        not_before = case when not $7 then c.not_before end, claim_id = case when not $7 then c.claim_id end,
        claimed_until = case when not $7 then c.claimed_until end
    from before b where c.project_id = b.project_id and c.id = b.id
    returning c.*, b.status as previous_status
), event as (` + callbackEventSQL + ` after where status <> previous_status)
select ` + callbackColumns + ` from after`

	// What has failed for long is tried anew. Who delivers locks a stream before its callback: so these are not waited for.
	refreshStreamsSQL = `
update streams set next_at = now(), attempts = 0, failing_since = null
where (project_id, callback_id, stream) in (
    select project_id, callback_id, stream from streams
    where project_id = $1 and callback_id = $2 and head < tail for update skip locked)`
)

// Change makes its owner's change to a callback, and writes the event of its new status. asks is true when its receiver
// has to be asked for its consent.
func (c Callbacks) Change(
	ctx context.Context, projectID string, id uuid.UUID, change domain.CallbackChange,
) (changed domain.Callback, asks bool, err error) {
	err = again(func() error {
		return c.DB.inTx(ctx, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, lockCallbackSQL, projectID, id)
			if changed, err = oneCallback(rows, id); err != nil {
				return err
			}
			was := changed.Status
			if asks, err = changed.Apply(change); err != nil {
				return err
			}
			if was == domain.CallbackGone && changed.Status != was { // one that is gone is not counted
				if err = roomForCallback(ctx, tx, changed); err != nil {
					return err
				}
			}
			rows, _ = tx.Query(ctx, changeCallbackSQL, projectID, id, changed.URL, changed.Events, changed.Status, changed.Reason, asks)
			if changed, err = oneCallback(rows, id); err != nil || !asks {
				return err
			}
			_, err = tx.Exec(ctx, refreshStreamsSQL, projectID, id)
			return err
		})
	})
	return changed, asks, err
}

const (
	// From here on nobody sends it anything, or has anything for it.
	retireCallbackSQL = `
update callbacks set status = 'gone', claim_id = null, claimed_until = null where project_id = $1 and id = $2`

	deleteCallbackSQL = `delete from callbacks where project_id = $1 and id = $2`
)

// lockAllSQL locks a callback with all that is deleted with it, or fails at once when somebody still works on a part of it.
var lockAllSQL = []string{
	`select from callbacks where project_id = $1 and id = $2 for update nowait`,
	`select from streams where project_id = $1 and callback_id = $2 for update nowait`,
	`select from deliveries where project_id = $1 and callback_id = $2 for update nowait`,
}

// How often Delete tries again to get all locks at once, and the pause in between.
const (
	deleteTries = 100
	deletePause = 50 * time.Millisecond
)

// again does what is its owner's change once more when Postgres chose it to end a deadlock: callbacks that are told of each
// other's changes, and those who deliver to them, may wait for one another in a circle.
func again(change func() error) (err error) {
	for range 3 {
		if err = change(); sqlState(err) != "40P01" {
			return err
		}
	}
	return err
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// Delete removes a callback and all that waits for it. Those who write events, those who deliver and those who clean up
// lock its parts each in an order of their own; so Delete waits for none of them while it holds a lock itself.
func (c Callbacks) Delete(ctx context.Context, projectID string, id uuid.UUID) error {
	tag, err := c.DB.pool.Exec(ctx, retireCallbackSQL, projectID, id)
	if err == nil && tag.RowsAffected() == 0 {
		return noCallback(id)
	}
	for n := 0; err == nil; n++ {
		err = c.delete(ctx, projectID, id)
		if sqlState(err) != "55P03" || n == deleteTries {
			break
		}
		select {
		case <-time.After(deletePause):
			err = nil
		case <-ctx.Done():
		}
	}
	return classify(err)
}

func (c Callbacks) delete(ctx context.Context, projectID string, id uuid.UUID) error {
	return c.DB.inTx(ctx, func(tx pgx.Tx) error {
		for _, sql := range lockAllSQL {
			if _, err := tx.Exec(ctx, sql, projectID, id); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, deleteCallbackSQL, projectID, id)
		return err
	})
}

const rotateSQL = `
update callbacks
set previous_secret = case when $4::interval > interval '0' then secret end,
    previous_until = case when $4::interval > interval '0' then now() + $4::interval end,
    secret = $3, updated_at = clock_timestamp()
where project_id = $1 and id = $2
returning ` + callbackColumns

// Rotate gives a callback another secret, sealed. The one before signs too for the time of overlap.
func (c Callbacks) Rotate(ctx context.Context, projectID string, id uuid.UUID, secret []byte, overlap time.Duration) (domain.Callback, error) {
	rows, _ := c.DB.pool.Query(ctx, rotateSQL, projectID, id, secret, overlap)
	return oneCallback(rows, id)
}
