// Package postgres owns every SQL statement of cloudfn, one file per aggregate, and the schema.
//
// Every statement that reads or writes rows of a project carries the project's id, and every decision
// about time is taken by the database's clock.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config says where Postgres is.
type Config struct {
	// Postgres, such as `postgres://user:password@host:5432/cloudfn`; behind PgBouncer in transaction mode add
	// `?default_query_exec_mode=cache_describe`. Of several hosts (`host1,host2`) the one that takes writes is used.
	URL domain.Secret `env:"DATABASE_URL"`
	// The connections of one replica: replicas times this must fit PgBouncer, or Postgres without a pooler.
	MaxConns int32 `env:"DATABASE_MAX_CONNS, default=4" min:"1" max:"1000"`
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.URL == "" {
		return errors.New("DATABASE_URL is empty: set it to the Postgres to use, " +
			"such as postgres://user:password@host:5432/cloudfn")
	}
	if _, err := pgxpool.ParseConfig(c.URL.Reveal()); err != nil {
		return errors.New("DATABASE_URL is not a Postgres URL " +
			"(postgres://user:password@host:5432/name)") // err may quote the password
	}
	return nil
}

// connectTimeout bounds one attempt to connect, and the check of an idle connection, so that an outage is answered and
// not waited out.
const connectTimeout = 3 * time.Second

// timeoutsSQL gives a new connection its timeouts, unless its URL or its role sets others. They end what a frozen
// replica has left behind: a statement that no one waits for, and a transaction that holds locks. A statement sets them
// because PgBouncer refuses them as startup parameters. Behind PgBouncer in transaction mode the role has them
// (knative/roles.sql).
const timeoutsSQL = `
select set_config(name, value, false)
from (values ('statement_timeout', '60s'), ('lock_timeout', '10s'),
             ('idle_in_transaction_session_timeout', '60s')) as ours (name, value)
where current_setting(name) = '0'`

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
	pc.PingTimeout = connectTimeout
	requireWrites(&pc.ConnConfig.Config)
	pc.ConnConfig.Tracer = tracer
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		registerTimestamps(conn.TypeMap())
		return conn.PgConn().Exec(ctx, timeoutsSQL).Close()
	}
	db, isKept := &DB{}, pc.ConnConfig.OnPgError
	pc.ConnConfig.OnPgError = func(conn *pgconn.PgConn, pg *pgconn.PgError) bool {
		closes := conditionOf(pg.Code).closes
		if closes == closesAll {
			db.pool.Reset()
		}
		return closes == closesNone && isKept(conn, pg)
	}
	if db.pool, err = pgxpool.NewWithConfig(context.Background(), pc); err != nil {
		return nil, err
	}
	return db, nil
}

// requireWrites makes connections, where several hosts are named, only to one that takes writes.
func requireWrites(c *pgconn.Config) {
	// With sslmode=prefer the same host is there twice: with TLS and without.
	isOther := func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port }
	if c.ValidateConnect == nil && slices.ContainsFunc(c.Fallbacks, isOther) {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
}

// Close waits for the connections in use and closes all.
func (db *DB) Close() { db.pool.Close() }

// txSettingsSQL names the budget of a transaction's events, which charge_events reads; no text = they do not count.
const txSettingsSQL = `
select set_config('lock_timeout', '5s', true), set_config('cloudfn.event_budget', case when $1 = '' then ''
    else jsonb_build_object('source', $1::text, 'per_minute', $2::integer, 'accepted', $3::boolean)::text end, true)`

// change is inTx, repeated after a deadlock: fn may run more than once.
func (db *DB) change(ctx context.Context, fn func(pgx.Tx) error) error {
	return repeat(ctx, func() error { return db.inTx(ctx, fn) })
}

// changeValue is change with a result.
func changeValue[T any](ctx context.Context, db *DB, fn func(pgx.Tx) (T, error)) (value T, err error) {
	err = db.change(ctx, func(tx pgx.Tx) error {
		value, err = fn(tx)
		return err
	})
	return value, err
}

// inTx runs fn in a transaction that gives up on a lock after 5 s. fn must not call other systems:
// a transaction is never held open across a cloud call. Events that a request writes count for its limit.
func (db *DB) inTx(ctx context.Context, fn func(pgx.Tx) error) error {
	budget := domain.EventBudgetFrom(ctx)
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, txSettingsSQL, budget.Source, budget.PerMinute, budget.IsAccepted); err != nil {
			return err
		}
		if err := fn(tx); err != nil || budget.Source == "" {
			return err
		}
		_, err := tx.Exec(ctx, "select charge_events()")
		return err
	})
	return classify(err)
}

// Now is the database's clock.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	return queryValue[time.Time](ctx, db.pool, "select clock_timestamp()")
}

// filter turns a view into the values that statements compare project_id and domain_id with; "" leaves that column
// open. It refuses a view without an owner, so that a forgotten check cannot show everything.
func filter(v domain.View) (project, domainID string, err error) {
	switch {
	case v.Scope == domain.ScopeProject && v.ProjectID != "":
		return v.ProjectID, v.DomainID, nil
	case v.Scope == domain.ScopeDomain && v.DomainID != "":
		return "", v.DomainID, nil
	case v.Scope == domain.ScopeCloud:
		return "", "", nil
	}
	return "", "", apperr.Wrap(apperr.Internal, fmt.Errorf("view without an owner: %+v", v), "internal error")
}

// Rows are scanned by the names of their columns: a field without a column stays zero, a column without a field is an
// error.

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// queryAll reads every row.
func queryAll[T any](ctx context.Context, db querier, sql string, args ...any) ([]T, error) {
	rows, _ := db.Query(ctx, sql, args...) // the error is also that of rows
	found, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[T])
	return found, classify(err)
}

// queryOne reads the only row. Without a row it returns NotFound, wrapping pgx.ErrNoRows.
func queryOne[T any](ctx context.Context, db querier, sql string, args ...any) (T, error) {
	rows, _ := db.Query(ctx, sql, args...)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByNameLax[T])
	return found, classify(err)
}

// queryFound reads the only row; found is false without a row.
func queryFound[T any](ctx context.Context, db querier, sql string, args ...any) (row T, found bool, err error) {
	row, err = queryOne[T](ctx, db, sql, args...)
	if errors.Is(err, pgx.ErrNoRows) {
		return row, false, nil
	}
	return row, err == nil, err
}

// queryColumn reads rows of one column.
func queryColumn[T any](ctx context.Context, db querier, sql string, args ...any) ([]T, error) {
	rows, _ := db.Query(ctx, sql, args...)
	found, err := pgx.CollectRows(rows, pgx.RowTo[T])
	return found, classify(err)
}

// queryValue reads one value.
func queryValue[T any](ctx context.Context, db querier, sql string, args ...any) (value T, err error) {
	err = db.QueryRow(ctx, sql, args...).Scan(&value)
	return value, classify(err)
}

// exec runs a statement and says how many rows it has written.
func exec(ctx context.Context, db querier, sql string, args ...any) (int64, error) {
	tag, err := db.Exec(ctx, sql, args...)
	return tag.RowsAffected(), classify(err)
}

// write runs a statement by one of the functions above, and repeats it after a deadlock. Events that a request writes
// count for its limit: that takes a transaction.
func write[T any](
	ctx context.Context, db *DB, run func(context.Context, querier, string, ...any) (T, error), sql string, args ...any,
) (value T, err error) {
	err = repeat(ctx, func() error {
		if domain.EventBudgetFrom(ctx).Source == "" {
			value, err = run(ctx, db.pool, sql, args...)
			return err
		}
		return db.inTx(ctx, func(tx pgx.Tx) error {
			value, err = run(ctx, tx, sql, args...)
			return err
		})
	})
	return value, err
}

// lockName holds the lock of a name until the transaction ends. Another transaction waits for it.
func lockName(ctx context.Context, tx pgx.Tx, name ...string) error {
	const sql = "select pg_advisory_xact_lock(hashtextextended($1, 0))"
	_, err := exec(ctx, tx, sql, strings.Join(name, "/"))
	return err
}

// fits is a Conflict when a statement counts as many rows as there may be; 0 = any number. What is counted begins with
// its name. Under a lock two rows cannot both be the last that fits.
func fits(ctx context.Context, db querier, most int, what, sql string, args ...any) error {
	if most == 0 {
		return nil
	}
	n, err := queryValue[int](ctx, db, sql, args...)
	if err == nil && n >= most {
		err = apperr.New(apperr.Conflict, "limit reached: at most %d %s", most, what)
	}
	return err
}

// timestamps reads timestamptz columns in UTC, and null as the zero time.
type timestamps struct{ *pgtype.TimestamptzCodec }

// registerTimestamps has a connection read times as the domain holds them.
func registerTimestamps(m *pgtype.Map) {
	codec := timestamps{&pgtype.TimestamptzCodec{ScanLocation: time.UTC}}
	m.RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: codec})
}

// PlanScan implements pgtype.Codec.
func (c timestamps) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	plan := c.TimestamptzCodec.PlanScan(m, oid, format, target)
	if plan == nil {
		return nil
	}
	return nullTime{plan}
}

type nullTime struct{ pgtype.ScanPlan }

// Scan implements pgtype.ScanPlan.
func (n nullTime) Scan(src []byte, dst any) error {
	if t, ok := dst.(pgtype.TimestamptzScanner); ok && src == nil {
		return t.ScanTimestamptz(pgtype.Timestamptz{Valid: true})
	}
	return n.ScanPlan.Scan(src, dst)
}

// orNull is null for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// orNullID is null for the zero UUID.
func orNullID(id uuid.UUID) uuid.NullUUID { return uuid.NullUUID{UUID: id, Valid: id != uuid.Nil} }

// orNullDuration is null for no time.
func orNullDuration(d time.Duration) *time.Duration {
	if d <= 0 {
		return nil
	}
	return &d
}

// orEmpty is an empty list for nil, which would be stored as null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// collectInto reads the rows of a statement of a batch.
func collectInto[T any](found *[]T) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, pgx.RowToStructByNameLax[T])
		return err
	}
}
