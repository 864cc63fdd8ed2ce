package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

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

// writeValue is queryValue of a statement that writes events: it is repeated after a deadlock.
func writeValue[T any](ctx context.Context, db *DB, sql string, args ...any) (value T, err error) {
	err = db.writeEvents(ctx, func(q querier) error {
		value, err = queryValue[T](ctx, q, sql, args...)
		return err
	})
	return value, err
}

// exec runs a statement and says how many rows it has written.
func exec(ctx context.Context, db querier, sql string, args ...any) (int64, error) {
	tag, err := db.Exec(ctx, sql, args...)
	return tag.RowsAffected(), classify(err)
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
