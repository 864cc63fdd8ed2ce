package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// retryAfter is how long callers should wait before they retry while Postgres is unavailable.
const retryAfter = 2 * time.Second

// The SQLSTATEs that the stores decide by.
const (
	stateInvalidValue   = "22023" // invalid_parameter_value
	stateForeignKey     = "23503" // foreign_key_violation
	stateUnique         = "23505" // unique_violation
	stateExclusion      = "23P01" // exclusion_violation
	stateDeadlock       = "40P01" // deadlock_detected
	stateLockNotGranted = "55P03" // lock_not_available
)

// sqlState is the SQLSTATE of an error; "" for one that Postgres did not send.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// retryDeadlock repeats a change that Postgres has ended to resolve a deadlock. Whoever writes events locks streams and
// callbacks of several subjects, in an order that other writers do not share.
func retryDeadlock(change func() error) (err error) {
	for range 3 {
		if err = change(); sqlState(err) != stateDeadlock {
			return err
		}
	}
	return err
}

// classify gives an error of pgx its code. The text of the cause stays in the log.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if _, ours := errors.AsType[*apperr.Error](err); ours {
		return err
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return apperr.Wrap(apperr.NotFound, err, "not found")
	}
	if errors.Is(err, context.Canceled) {
		return apperr.Wrap(apperr.ClientGone, err, "the request was canceled")
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return unavailable(err) // also when Postgres answers that it has no such database, or user
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return classifyServer(pg, err)
	}
	if errors.Is(err, context.DeadlineExceeded) || isConnection(err) {
		return unavailable(err)
	}
	return apperr.Wrap(apperr.Internal, err, "internal error")
}

// isConnection reports whether the connection failed. pgx reports some failures (a closed socket, EOF) as plain errors.
func isConnection(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || pgconn.SafeToRetry(err) || pgconn.Timeout(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

func classifyServer(pg *pgconn.PgError, err error) error {
	switch {
	case pg.Code == stateUnique:
		return apperr.Wrap(apperr.Conflict, err, "it exists already")
	case pg.Code == "42P01" || pg.Code == "42703": // undefined table or column: not migrated
		return apperr.Wrap(apperr.Unavailable, err, "the database's schema is older than this program: run migrate")
	case pg.Code == stateLockNotGranted,
		pg.Code == "25P03",  // idle_in_transaction_session_timeout
		pg.Code[:2] == "08", // connection exceptions
		pg.Code[:2] == "40", // serialization failures, deadlocks
		pg.Code[:2] == "53", // too many connections, disk full
		pg.Code[:2] == "57": // shutting down, canceled
		return unavailable(err)
	}
	return apperr.Wrap(apperr.Internal, err, "internal error")
}

func unavailable(err error) error {
	e := apperr.Wrap(apperr.Unavailable, err, "the database is not available")
	e.RetryAfter = retryAfter
	return e
}

// orNotFound is NotFound with this text for a row that does not exist, and classifies any other error.
func orNotFound(err error, format string, args ...any) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return apperr.New(apperr.NotFound, format, args...)
	}
	return classify(err)
}
