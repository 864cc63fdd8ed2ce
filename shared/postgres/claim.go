package postgres

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// One replica at a time works on a row. It claims the row by the columns claim_id and claimed_until; every write of
// that work carries the claim's id and writes nothing once another replica has the row. A claim expires, by the
// database's clock.

// unclaimed is the condition that no replica has claimed the row of this alias. It is for rows that the statement finds
// by their key or another condition; due.Unclaimed is for those that look for due rows.
func unclaimed(alias string) string { return due.Unclaimed(alias, "clock_timestamp()") }

// Queue is a queue of due rows of all projects.
type Queue[T any] struct {
	db   *DB
	spec due.Queue
	key  func(row T) []any // the values of its primary key
	// complete reads the parts of claimed rows; nil = they have none.
	complete func(ctx context.Context, db querier, rows []T) error
}

// Claim implements due.Store. What it cannot complete it releases.
func (q Queue[T]) Claim(
	ctx context.Context, claimFor time.Duration, most int, full []string,
) (due.Claimed[T], error) {
	got := due.Claimed[T]{Claim: domain.NewClaim()}
	rows, _ := q.db.pool.Query(ctx, q.spec.ClaimSQL(), got.Claim.ID, claimFor, most, orEmpty(full))
	var values []T
	_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (none struct{}, err error) {
		claimed := claimedRow{CollectableRow: row, at: &got.At}
		value, err := pgx.RowToStructByNameLax[T](&claimed)
		values = append(values, value)
		got.Rows = append(got.Rows, due.Row[T]{Shares: claimed.shares})
		return none, err
	})
	if err == nil && q.complete != nil && len(values) > 0 {
		err = q.complete(ctx, q.db.pool, values)
	}
	if err != nil {
		ending, stop := domain.Detached(ctx)
		defer stop()
		_, released := exec(ending, q.db.pool, q.spec.ReleaseSQL(), got.Claim.ID)
		return due.Claimed[T]{}, errors.Join(classify(err), released)
	}
	for n := range got.Rows {
		got.Rows[n].Value, got.Rows[n].Renew = values[n], q.renew(got.Claim, claimFor, q.key(values[n]))
	}
	got.Claim.Acquired = len(got.Rows) > 0
	return got, nil
}

// NextDue implements due.Store.
func (q Queue[T]) NextDue(ctx context.Context, within time.Duration, full []string) (*time.Duration, error) {
	return queryValue[*time.Duration](ctx, q.db.pool, q.spec.NextSQL(), within, orEmpty(full))
}

// renew returns what prolongs a claim of a row from now on. It is domain.ErrFenced when the claim has ended.
func (q Queue[T]) renew(claim domain.Claim, claimFor time.Duration, key []any) func(context.Context) error {
	args := append([]any{claim.ID, claimFor}, key...)
	return func(ctx context.Context) error { return fenced(exec(ctx, q.db.pool, q.spec.RenewSQL(), args...)) }
}

// claimedRow is a row of due.Queue.ClaimSQL: that of the table, its shares, and the time.
type claimedRow struct {
	pgx.CollectableRow

	shares []string
	at     *time.Time
}

// FieldDescriptions leaves out what is not of the table.
func (r *claimedRow) FieldDescriptions() []pgconn.FieldDescription {
	all := r.CollectableRow.FieldDescriptions()
	return all[:len(all)-2]
}

// Scan implements pgx.CollectableRow.
func (r *claimedRow) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(dest, &r.shares, r.at)...)
}

// acquire claims the row of a key: $1 and $2 are the key, $3 the claim's id, $4 its duration; more follow.
func acquire(
	ctx context.Context, db querier, sql string, key1, key2 any, claimFor time.Duration, more ...any,
) (claim domain.Claim, err error) {
	claim = domain.NewClaim()
	n, err := exec(ctx, db, sql, append([]any{key1, key2, claim.ID, claimFor}, more...)...)
	claim.Acquired = n == 1
	return claim, err
}

// fenced is domain.ErrFenced when a write under a claim has found no row.
func fenced(written int64, err error) error {
	if err == nil && written == 0 {
		return domain.ErrFenced
	}
	return err
}

// inProgress is a Conflict while another replica has the claim for claimedFor. The caller may retry after one to two
// seconds: most claims are released before they expire.
func inProgress(claimedFor time.Duration, text string) error {
	busy := apperr.New(apperr.Conflict, "%s", text)
	busy.RetryAfter = min(max(claimedFor, time.Second), 2*time.Second)
	return busy
}

// A claim that finds its row neither free nor there is repeated after a pause: the row was deleted between the two
// statements.
const (
	vanishedTries = 10
	vanishedPause = 20 * time.Millisecond
)

// keyed is how to begin what a caller gave a key, so that it is done once.
type keyed struct {
	beginSQL string // claims the row, or inserts it; the key is $1 and $2
	args     []any
	hash     []byte
	findSQL  string // reads the hash, the result and claimed_for of a key
	other    error  // for another request with the key
	busy     string // while another replica works on it
	full     func() error
}

// begin claims the row and returns what beginSQL does, or the result that an earlier attempt has stored.
func begin[T any](ctx context.Context, db querier, k keyed) (T, []byte, error) {
	for try := 1; ; try++ {
		begun, isBegun, err := queryFound[T](ctx, db, k.beginSQL, k.args...)
		if err != nil || isBegun {
			return begun, nil, err
		}
		stored, isFound, err := queryFound[struct {
			Hash, Result []byte
			ClaimedFor   time.Duration
		}](ctx, db, k.findSQL, k.args[:2]...)
		if err == nil && !isFound { // abandoned meanwhile, or it is one too many
			err = k.full()
		}
		switch {
		case err != nil:
			return begun, nil, err
		case !isFound && try < vanishedTries && flow.Sleep(ctx, vanishedPause):
			continue
		case isFound && !bytes.Equal(stored.Hash, k.hash):
			return begun, nil, k.other
		case stored.Result == nil:
			return begun, nil, inProgress(stored.ClaimedFor, k.busy)
		}
		return begun, stored.Result, nil
	}
}

// batchRows is how many rows a statement of inBatches deletes.
const batchRows = 500

// inBatches repeats a statement that deletes rows older than age ($1), at most $2 of them, until none are left: no
// statement runs into its time limit, and what a batch has deleted stays deleted.
func inBatches(ctx context.Context, db querier, sql string, age time.Duration) error {
	for {
		if n, err := exec(ctx, db, sql, age, batchRows); err != nil || n < batchRows {
			return err
		}
	}
}
