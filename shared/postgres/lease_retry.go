package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// A failed start or end has not happened yet.
	retryLeaseSQL = setStatus + `, problem = null, due_at = clock_timestamp(), attempts = 0, connection_id = $5,
        started_at = case when l.start_result <> 'failed' or $3 = 'ending' then l.started_at end,
        start_result = case when l.start_result = 'failed' and $3 <> 'ending' then '' else l.start_result end,
        ended_at = null, end_result = '',
        ending_since = case when $3 = 'ending' then ` + endingSinceNow + ` end` + afterStatus
)

// Retry has run-leases try again what has failed of a lease in error: its start, or its end when that is due. One that
// is ending is tried now, and as long as at first. A connection given replaces the old one, and must outlast the lease.
// A lease in another status is a Conflict.
func (s Leases) Retry(
	ctx context.Context, projectID string, id uuid.UUID, connection *domain.Connection, actor *domain.Actor,
) (retried domain.Lease, err error) {
	err = s.DB.changeTx(ctx, func(tx pgx.Tx) (err error) {
		retried, err = retry(ctx, tx, projectID, id, connection, actor)
		return err
	})
	return retried, err
}

func retry(
	ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID, connection *domain.Connection, actor *domain.Actor,
) (domain.Lease, error) {
	stored, err := lockLease(ctx, tx, projectID, id)
	if err != nil {
		return stored, err
	}
	if err := stored.CheckRetry(); err != nil {
		return stored, err
	}
	now, err := queryValue[time.Time](ctx, tx, "select clock_timestamp()")
	if err != nil {
		return stored, err
	}
	used, err := replaceConnection(ctx, tx, stored, stored, connection)
	if err != nil {
		return stored, err
	}
	retried, err := queryOne[domain.Lease](ctx, tx, retryLeaseSQL, projectID, id, retryStatus(stored, now), actor,
		orNullID(used))
	if err != nil {
		return stored, err
	}
	return withParts(ctx, tx, retried)
}

// retryStatus is the status of a lease that is retried.
func retryStatus(l domain.Lease, now time.Time) domain.LeaseStatus {
	switch {
	case !l.EndsAt.After(now) || l.IsEnding():
		return domain.LeaseEnding
	case l.StartResult == domain.StepDone:
		return domain.LeaseActive
	case l.StartsAt.After(now):
		return domain.LeasePending
	}
	return domain.LeaseStarting
}
