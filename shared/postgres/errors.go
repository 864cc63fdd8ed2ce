package postgres

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// retryAfter is how long callers should wait before they retry while Postgres is unavailable.
const retryAfter = 2 * time.Second

// The SQLSTATEs that the stores decide by.
const (
	stateInvalidValue   = "22023" // invalid_parameter_value
	stateForeignKey     = "23503" // foreign_key_violation
	stateUnique         = "23505" // unique_violation
	stateExclusion      = "23P01" // exclusion_violation
	stateSerialization  = "40001" // serialization_failure
	stateDeadlock       = "40P01" // deadlock_detected
	stateLockNotGranted = "55P03" // lock_not_available
	stateEventLimit     = "CF429" // of charge_events: Detail is the wait in seconds, Hint the limit a minute
)

// sqlState is the SQLSTATE of an error; "" for one that Postgres did not send.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// repeat repeats a change that Postgres has ended because it collided with another one, as in a deadlock. Writers of
// events lock streams and callbacks of several subjects, in an order that other writers do not share.
// Each waits for a random time, so that those that collided do not collide again.
func repeat(ctx context.Context, change func() error) error {
	for try := 1; ; try++ {
		err := change()
		state := sqlState(err)
		if state != stateDeadlock && state != stateSerialization || try == deadlockTries ||
			!flow.Sleep(ctx, deadlockPause(try)) {
			return err
		}
	}
}

const deadlockTries = 4

// deadlockPause is up to 20, 40 or 80 ms.
func deadlockPause(try int) time.Duration { return rand.N(10 * time.Millisecond << try) } //nolint:gosec // no secret

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
		return unavailable(err, noDatabase) // also when Postgres answers that it has no such database, or user
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return classifyServer(pg, err)
	}
	if errors.Is(err, context.DeadlineExceeded) || isConnection(err) {
		return unavailable(err, noDatabase)
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
	if pg.Code == stateEventLimit {
		wait, _ := strconv.Atoi(pg.Detail)
		perMinute, _ := strconv.Atoi(pg.Hint)
		return tooManyEvents(perMinute, time.Duration(wait)*time.Second)
	}
	c := conditionOf(pg.Code)
	switch c.code {
	case "":
		return apperr.Wrap(apperr.Internal, err, "internal error")
	case apperr.Unavailable:
		return unavailable(err, cmp.Or(c.message, noDatabase))
	}
	return apperr.Wrap(c.code, err, "%s", c.message)
}

// condition is what an SQLSTATE means to a caller and to the pool.
type condition struct {
	state   string // or a class of them: its two characters
	means   string // for the table of docs/failover.md
	code    apperr.Code
	message string // for the caller; "" = the database is not available
	closes  closes
}

// closes is which connections of the pool an error closes, besides those that Postgres ends with it.
type closes int

const (
	closesNone closes = iota
	closesOne
	closesAll // they lead to the same server, or to one that has the same state
)

const (
	noDatabase   = "the database is not available"
	needsMigrate = "the database's schema is older than this program: run migrate"
)

// conditions are all that have a meaning. Any other error of Postgres is a defect of a statement.
var conditions = []condition{
	{"08", "the connection broke", apperr.Unavailable, "", closesOne},
	{stateUnique, "the row exists", apperr.Conflict, "it exists already", closesNone},
	{"25006", "the server takes no writes: it is a standby, or was one", apperr.Unavailable, "", closesAll},
	{"25P03", "a transaction was idle for too long", apperr.Unavailable, "", closesOne},
	{"28", "the role or its password is not accepted", apperr.Unavailable, "", closesOne},
	{"3D000", "the database does not exist", apperr.Unavailable, "", closesOne},
	{"40", "transactions blocked each other, and this one was ended", apperr.Unavailable, "", closesNone},
	{"42703", "a column does not exist: `migrate` was not run", apperr.Unavailable, needsMigrate, closesNone},
	{"42883", "a function does not exist: `migrate` was not run", apperr.Unavailable, needsMigrate, closesNone},
	{"42P01", "a table does not exist: `migrate` was not run", apperr.Unavailable, needsMigrate, closesNone},
	{"53", "the server has no more connections, memory or disk", apperr.Unavailable, "", closesNone},
	{stateLockNotGranted, "a lock was not released in time", apperr.Unavailable, "", closesNone},
	{"57", "the server ended the connection", apperr.Unavailable, "", closesOne},
	{"57014", "a statement took too long", apperr.Unavailable, "", closesNone},
	{"57P01", "the server stops, or an admin ended the connection", apperr.Unavailable, "", closesAll},
	{"57P02", "the server crashed", apperr.Unavailable, "", closesAll},
	{"57P03", "the server starts or stops", apperr.Unavailable, "", closesOne}, // no connection was made to it
	{"58", "a file or the disk of the server failed", apperr.Unavailable, "", closesNone},
}

// conditionOf returns the condition of an SQLSTATE, else that of its class, else none.
func conditionOf(state string) (found condition) {
	for _, c := range conditions {
		if c.state == state || found.state == "" && len(c.state) == 2 && strings.HasPrefix(state, c.state) {
			found = c
		}
	}
	return found
}

func unavailable(err error, message string) error {
	e := apperr.Wrap(apperr.Unavailable, err, "%s", message)
	e.RetryAfter = retryAfter
	return e
}

// ifNone is the other error for a row that does not exist, and err for any other.
func ifNone(err, other error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return other
	}
	return err
}

// orNotFound is NotFound with this text for a row that does not exist, and classifies any other error.
func orNotFound(err error, format string, args ...any) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return apperr.New(apperr.NotFound, format, args...)
	}
	return classify(err)
}
