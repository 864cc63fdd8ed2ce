package postgres

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/flow"
)

// partitionLock keeps two replicas from making or dropping partitions at once (pg_try_advisory_xact_lock).
const partitionLock = 0x636c6f7564666e // "cloudfn"

// Making and dropping a partition takes the strongest lock on the table or on its default partition. While that lock
// waits for a long reader, all other statements queue behind it. So it waits for lockWait only, and lets the queue pass
// before it retries. DETACH PARTITION CONCURRENTLY would not need the lock; Postgres refuses it for a table that has a
// default partition.
const (
	lockWait  = "100ms"
	lockTries = 10
	lockPause = 300 * time.Millisecond
)

// Maintain makes the partitions of this month and the next, drops the months that ended more than retention ago, and
// deletes the rows of such months from other partitions. It is idempotent, and safe in any number of replicas. A
// partition that is read for long stays until the next call.
func (r Requests) Maintain(ctx context.Context, retention time.Duration) error {
	err := r.alone(ctx, func(tx pgx.Tx, now time.Time) error {
		month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		for _, from := range []time.Time{month, month.AddDate(0, 1, 0)} {
			if _, err := tx.Exec(ctx, makeMonthSQL, from); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.dropPartitions(ctx, retention); err != nil {
		return err
	}
	return r.deleteStrays(ctx, retention)
}

// alone runs fn in a transaction, with the database's time, unless another replica does. It retries while fn has to
// wait for a lock; after lockTries it logs that and leaves the work to the next call.
func (r Requests) alone(ctx context.Context, fn func(tx pgx.Tx, now time.Time) error) error {
	for n := range lockTries {
		if n > 0 && !flow.Sleep(ctx, lockPause) {
			return classify(ctx.Err())
		}
		err := r.tryAlone(ctx, fn)
		if code := sqlState(err); code != stateLockNotGranted && code != stateDeadlock {
			return err
		}
	}
	slog.WarnContext(ctx,
		"the request log's partitions are unchanged: a statement reads the table for long; the next event retries")
	return nil
}

func (r Requests) tryAlone(ctx context.Context, fn func(tx pgx.Tx, now time.Time) error) error {
	return r.DB.inTx(ctx, func(tx pgx.Tx) error {
		var now time.Time
		var mine bool
		err := tx.QueryRow(ctx, "select pg_try_advisory_xact_lock($1), now()", partitionLock).Scan(&mine, &now)
		if err != nil || !mine {
			return err
		}
		// Attaching a partition reads all of its rows, which may take longer than any other statement may.
		const timeouts = "set local lock_timeout = '" + lockWait + "'; set local statement_timeout = 0"
		if _, err := tx.Exec(ctx, timeouts); err != nil {
			return err
		}
		return fn(tx, now.UTC())
	})
}

const (
	strayRows    = 5000 // deleted by one statement
	strayBatches = 20   // in one call

	// A row is deleted when its month's partition would be. Only the default partition has such rows, and one that was
	// the default before.
	deleteStraysSQL = `
delete from requests where at < date_trunc('month', now() - $1::interval, 'UTC') and id = any(array(
    select id from requests where at < date_trunc('month', now() - $1::interval, 'UTC') limit $2))`
)

// deleteStrays deletes old rows of months that have no partition of their own.
func (r Requests) deleteStrays(ctx context.Context, retention time.Duration) error {
	for range strayBatches {
		n, err := exec(ctx, r.DB.pool, deleteStraysSQL, retention, strayRows)
		if err != nil || n < strayRows {
			return err
		}
	}
	return nil
}

const (
	partitionName = "requests_200601" // the month that it ends with
	partitionsSQL = `
select relname::text from pg_inherits join pg_class t on t.oid = inhrelid where inhparent = 'requests'::regclass`
	makeMonthSQL = `select make_requests_month($1)` // months.sql
	dropMonthSQL = `select drop_requests_month($1)`
)

// dropPartitions drops the months that ended more than retention ago, each in a transaction of its own: one that has
// locked the default partition and then waits for the whole table, as dropping does, is in a deadlock with every COPY.
func (r Requests) dropPartitions(ctx context.Context, retention time.Duration) error {
	now, err := r.DB.Now(ctx)
	if err != nil {
		return err
	}
	names, err := queryColumn[string](ctx, r.DB.pool, partitionsSQL)
	if err != nil {
		return err
	}
	for _, name := range names {
		from, err := time.Parse(partitionName, name)
		if err != nil || from.AddDate(0, 1, 0).After(now.Add(-retention)) {
			continue // the default partition, or a month within the retention
		}
		err = r.alone(ctx, func(tx pgx.Tx, _ time.Time) error {
			_, err := tx.Exec(ctx, dropMonthSQL, from)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
