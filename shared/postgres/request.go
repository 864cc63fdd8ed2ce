package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/domain"
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
		err = unavailable(errors.New("transaction "+transaction+" is in progress"), isAway)
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
  and ($1 = '' or project_id = $1) and ($2 = '' or domain_id = $2)
order by id desc
limit $5`

	listActedSQL = requestColumnsSQL + `
  and connection_id is not null and ($1 = '' or acted_in = $1) and ($2 = '' or acted_in_domain = $2)
  and ($6::uuid is null or connection_id = $6)
order by id desc
limit $5`
)

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
