package postgres

import (
	"context"
	"errors"
	"io"
	"net"
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
	"remote", "code", "connection_id", "acted_in", "acted_in_domain",
}

// Insert writes the rows with one COPY and returns when they are durable. The time is the database's.
// It tries again only when it is certain that nothing was written.
func (r Requests) Insert(ctx context.Context, rows []domain.Request) error {
	err := r.copy(ctx, rows)
	if err != nil && pgconn.SafeToRetry(err) {
		err = r.copy(ctx, rows)
	}
	return classify(err)
}

func (r Requests) copy(ctx context.Context, rows []domain.Request) error {
	source := pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
		q := &rows[i]
		return []any{
			q.ID, q.Function, q.Method, q.Path, int16(q.Status), int32(q.Duration.Milliseconds()),
			q.UserID, q.UserName, q.ProjectID, q.DomainID, q.RequestID, q.Remote, q.Code,
			orNullID(q.Through.ConnectionID), q.Through.ProjectID, q.Through.DomainID,
		}, nil
	})
	_, err := r.DB.pool.CopyFrom(ctx, pgx.Identifier{"requests"}, requestColumns, source)
	return err
}

// The marker is compared by id: ids are version 7 UUIDs, made in the order of time within a copy and,
// across copies, as far as their clocks agree. The order of a listing is the order of the ids.
const (
	requestColumnsSQL = `
select id, at, function, method, path, status, ms, user_id, user_name, project_id, domain_id, request_id, remote, code,
       coalesce(connection_id, '00000000-0000-0000-0000-000000000000'), acted_in, acted_in_domain
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

type requestRow struct {
	ID        uuid.UUID
	At        time.Time
	Function  string
	Method    string
	Path      string
	Status    int
	MS        int64
	UserID    string
	UserName  string
	ProjectID string
	DomainID  string
	RequestID string
	Remote    string
	Code      string

	ConnectionID  uuid.UUID
	ActedIn       string
	ActedInDomain string
}

// List reads the newest rows of a view first, at most q.Limit.
func (r Requests) List(ctx context.Context, q domain.RequestQuery) ([]domain.Request, error) {
	project, domainID, err := filter(q.View)
	if err != nil {
		return nil, err
	}
	var since, marker any
	if !q.Since.IsZero() {
		since = q.Since
	}
	if q.Marker != uuid.Nil {
		marker = q.Marker
	}
	sql, args := listRequestsSQL, []any{project, domainID, since, marker, q.Limit}
	if q.Acted {
		sql, args = listActedSQL, append(args, orNullID(q.ConnectionID))
	}
	rows, _ := r.DB.pool.Query(ctx, sql, args...)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[requestRow])
	if err != nil {
		return nil, classify(err)
	}
	out := make([]domain.Request, len(found))
	for i, f := range found {
		out[i] = domain.Request{
			ID: f.ID, At: f.At.UTC(), Function: f.Function, Method: f.Method, Path: f.Path, Status: f.Status,
			Duration: time.Duration(f.MS) * time.Millisecond, UserID: f.UserID, UserName: f.UserName, ProjectID: f.ProjectID,
			DomainID: f.DomainID, RequestID: f.RequestID, Remote: f.Remote, Code: f.Code,
			Through: domain.ActedThrough{ConnectionID: f.ConnectionID, ProjectID: f.ActedIn, DomainID: f.ActedInDomain},
		}
	}
	return out, nil
}

func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
