// Package postgres owns every SQL statement of cloudfn, one file per aggregate, and the schema.
//
// Every statement that reads or writes rows of a project carries the project's id, and every decision
// about time is taken by the database's clock.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config says where Postgres is.
type Config struct {
	// Postgres, such as `postgres://user:password@host:5432/cloudfn`; behind PgBouncer in transaction mode add
	// `?default_query_exec_mode=cache_describe`.
	URL domain.Secret `env:"DATABASE_URL"`
	// The connections of one replica: replicas times this must fit PgBouncer, or Postgres when there is none.
	MaxConns int32 `env:"DATABASE_MAX_CONNS, default=4"`
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.URL == "" {
		return errors.New("DATABASE_URL is empty: set it to the Postgres to use, such as postgres://user:password@host:5432/cloudfn")
	}
	if c.MaxConns < 1 || c.MaxConns > 1000 {
		return fmt.Errorf("DATABASE_MAX_CONNS is %d: it must be 1 to 1000", c.MaxConns)
	}
	if _, err := pgxpool.ParseConfig(c.URL.Reveal()); err != nil {
		return errors.New("DATABASE_URL is not a Postgres URL (postgres://user:password@host:5432/name)") // err may quote the password
	}
	return nil
}

// connectTimeout bounds one connection attempt, so that an outage is answered and not waited out.
const connectTimeout = 3 * time.Second

// timeoutsSQL gives a new connection its timeouts, as far as neither its URL nor its role says otherwise. They end what a replica
// that was frozen or cut off has left behind: a statement that nobody waits for any more, and a transaction that holds locks.
// They are set by a statement, because PgBouncer refuses them as parameters of the start. Behind one in transaction mode the
// connection may be given to others; there the role has them (knative/roles.sql), and this sets nothing.
const timeoutsSQL = `
select set_config(name, value, false)
from (values ('statement_timeout', '60s'), ('lock_timeout', '10s'), ('idle_in_transaction_session_timeout', '60s')) as ours (name, value)
where current_setting(name) = '0'`

// retryAfter is what callers are told when Postgres is away.
const retryAfter = 2 * time.Second

// DB is a pool of connections. It connects when it is first used.
type DB struct {
	pool *pgxpool.Pool
}

// Open prepares a pool and connects to nothing yet. tracer may be nil.
func Open(cfg Config, tracer pgx.QueryTracer) (*DB, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	pc, err := pgxpool.ParseConfig(cfg.URL.Reveal())
	if err != nil {
		return nil, err
	}
	pc.MaxConns = cfg.MaxConns
	pc.MaxConnLifetimeJitter = 5 * time.Minute
	pc.ConnConfig.ConnectTimeout = connectTimeout
	pc.ConnConfig.Tracer = tracer
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		return conn.PgConn().Exec(ctx, timeoutsSQL).Close()
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		return nil, err
	}
	return &DB{pool: pool}, nil
}

// Close waits for the connections in use and closes all.
func (db *DB) Close() { db.pool.Close() }

// inTx runs fn in a transaction that gives up on a lock after 5 s. fn must not call other systems:
// a transaction is never held open across a cloud call.
func (db *DB) inTx(ctx context.Context, fn func(pgx.Tx) error) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local lock_timeout = '5s'"); err != nil {
			return err
		}
		return fn(tx)
	})
	return classify(err)
}

// Now is the database's clock.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	rows, _ := db.pool.Query(ctx, "select clock_timestamp()")
	now, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[time.Time])
	return now.UTC(), classify(err)
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
		return unavailable(err) // also when Postgres answers that there is no such database, or user
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return classifyServer(pg, err)
	}
	if errors.Is(err, context.DeadlineExceeded) || isConnection(err) {
		return unavailable(err)
	}
	return apperr.Wrap(apperr.Internal, err, "internal error")
}

func isConnection(err error) bool {
	_, network := errors.AsType[net.Error](err)
	// What is left (a closed socket, EOF) is only told by pgx through these.
	return network || pgconn.SafeToRetry(err) || pgconn.Timeout(err) || isBroken(err)
}

func classifyServer(pg *pgconn.PgError, err error) error {
	switch {
	case pg.Code == "23505": // unique_violation
		return apperr.Wrap(apperr.Conflict, err, "it exists already")
	case pg.Code == "42P01" || pg.Code == "42703": // undefined table or column: not migrated
		return apperr.Wrap(apperr.Unavailable, err, "the database's schema is older than this program: run migrate")
	case pg.Code == "55P03", // lock_not_available
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

// orNull is null for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
