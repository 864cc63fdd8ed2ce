package postgres

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// Requests is the request log.
type Requests struct{ DB *DB }

var requestColumns = []string{
	"id", "function", "method", "path", "status", "ms", "user_id", "user_name", "project_id", "domain_id", "request_id",
	"remote", "code", "connection_id", "acted_in", "acted_in_domain", "count",
}

// Insert writes the rows with one COPY and returns when they are durable. The time is the database's. It retries only
// when it is certain that nothing was written.
func (r Requests) Insert(ctx context.Context, rows []domain.Request) error {
	err := copyRequests(ctx, r.DB.pool, rows)
	if err != nil && pgconn.SafeToRetry(err) {
		err = copyRequests(ctx, r.DB.pool, rows)
	}
	return classify(err)
}

// InsertOnce writes the rows as Insert does, for a caller who repeats it. When it fails, Committed reports whether the
// rows of the transaction are there all the same. Without a transaction they are not.
func (r Requests) InsertOnce(ctx context.Context, rows []domain.Request) (transaction string, err error) {
	err = pgx.BeginFunc(ctx, r.DB.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, "select pg_current_xact_id()::text").Scan(&transaction)
		if err != nil {
			return err
		}
		return copyRequests(ctx, tx, rows)
	})
	return transaction, classify(err)
}

// Committed reports whether a transaction was committed. It is Unavailable while the transaction is in progress.
// Postgres forgets transactions that are millions of others old: those count as committed.
func (r Requests) Committed(ctx context.Context, transaction string) (bool, error) {
	const sql = "select coalesce(pg_xact_status($1::text::xid8), 'committed')"
	status, err := queryValue[string](ctx, r.DB.pool, sql, transaction)
	if sqlState(err) == stateInvalidValue { // a restored database has not come to that transaction
		return false, nil
	}
	if err == nil && status == "in progress" {
		err = unavailable(errors.New("transaction "+transaction+" is in progress"), noDatabase)
	}
	return status == "committed", err
}

type copier interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

func copyRequests(ctx context.Context, db copier, rows []domain.Request) error {
	source := pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
		q := &rows[i]
		return []any{
			q.ID, q.Function, q.Method, q.Path, int16(q.Status), int32(q.Duration.Milliseconds()),
			q.UserID, q.UserName, q.ProjectID, q.DomainID, q.RequestID, q.Remote, q.Code,
			orNullID(q.Used.ConnectionID), q.Used.ProjectID, q.Used.DomainID,
			max(q.Count, 1),
		}, nil
	})
	_, err := db.CopyFrom(ctx, pgx.Identifier{"requests"}, requestColumns, source)
	return err
}

// Rows are listed in the order of their ids: version 7 UUIDs, in the order of time within a replica and, across
// replicas, as far as their clocks agree.
const (
	requestColumnsSQL = `
select id, at, function, method, path, status, ms, user_id, user_name, project_id, domain_id, request_id, remote, code,
       connection_id, acted_in, acted_in_domain, count
from requests
where ($3::timestamptz is null or at >= $3) and ($4::uuid is null or id < $4)`

	listRequestsSQL = requestColumnsSQL + `
  and ($1 = '' or project_id = $1) and ($2 = '' or domain_id = $2)`

	listActedSQL = requestColumnsSQL + `
  and connection_id is not null and ($1 = '' or acted_in = $1) and ($2 = '' or acted_in_domain = $2)
  and ($6::uuid is null or connection_id = $6)`
)

// onlySQL selects a part of the log, in the words of the partial indexes.
var onlySQL = map[domain.RequestKind]string{
	domain.RequestChanges: `
  and method not in ('GET', 'HEAD', 'OPTIONS') and path not like '/console/%'`,
	domain.RequestErrors: `
  and status >= 400`,
}

// List reads the newest rows of a view first, at most q.Limit.
func (r Requests) List(ctx context.Context, q domain.RequestQuery) ([]domain.Request, error) {
	project, domainID, err := filter(q.View)
	if err != nil {
		return nil, err
	}
	sql, args := listRequestsSQL, []any{project, domainID, orNull(q.Since), orNullID(q.Marker), q.Limit}
	if q.Acted {
		sql, args = listActedSQL, append(args, orNullID(q.ConnectionID))
	}
	sql += onlySQL[q.Only] + "\norder by id desc\nlimit $5"
	type requestRow struct {
		domain.Request

		MS                     int64
		ConnectionID           uuid.UUID
		ActedIn, ActedInDomain string
	}
	rows, err := queryAll[requestRow](ctx, r.DB.pool, sql, args...)
	found := make([]domain.Request, len(rows))
	for i, row := range rows {
		row.Duration = time.Duration(row.MS) * time.Millisecond
		row.Used = domain.UsedConnection{
			ConnectionID: row.ConnectionID, ProjectID: row.ActedIn, DomainID: row.ActedInDomain,
		}
		found[i] = row.Request
	}
	return found, err
}

// measureSQL records the size of the log and of the stored responses for this hour, and adds up by how much it grew
// from one hour to the next within a day. It shrinks when a month is dropped, which makes up for no growth.
const measureSQL = `
with current as (
    select date_trunc('hour', now(), 'UTC') as hour, coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint
        + pg_total_relation_size('idempotency_keys') as bytes
    from pg_inherits where inhparent = 'requests'::regclass
), stored as (
    insert into request_log_sizes as s (hour, bytes) select hour, bytes from current
    on conflict (hour) do update set bytes = excluded.bytes
), old as (
    delete from request_log_sizes where hour < now() - interval '2 days'
)
select coalesce(sum(greatest(grown, 0)), 0)::bigint from (
    select bytes - lag(bytes) over (order by hour) as grown from (
        select hour, bytes from request_log_sizes
        where hour > now() - interval '25 hours' and hour <> (select hour from current)
        union all select hour, bytes from current
    ) sizes
) growth`

// Measure returns by how many bytes the request log and the stored responses to requests with an Idempotency-Key have
// grown, with their indexes, within about a day. Until it has been called for a day it knows less.
func (r Requests) Measure(ctx context.Context) (grown int64, err error) {
	return queryValue[int64](ctx, r.DB.pool, measureSQL)
}

// partitionLock keeps two replicas from making or dropping partitions concurrently (pg_try_advisory_xact_lock).
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
