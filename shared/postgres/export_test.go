package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool gives tests the pool as functions have it.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// Classify gives an error its code.
var Classify = classify

// DeleteUntil is what Run does once it has the job.
func (r Retention) DeleteUntil(ctx context.Context, until time.Time) (done bool, err error) {
	return r.deleteOld(ctx, until)
}
