package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

const postponeSQL = `
with after as (
    update streams s set next_at = now() + $6::interval, ` + due.ReleaseSQL + `
    where s.project_id = $1 and s.callback_id = $2 and s.stream = $3 and s.claim_id = $4
    returning s.project_id
), noted as (
    update deliveries d set error = $7 from after where d.project_id = $1 and d.id = $5
)
update callbacks c set not_before = greatest(c.not_before, now() + $6::interval) from after
where c.project_id = $1 and c.id = $2`

// Postpone ends the claim of a stream that could not be attempted for a reason which is not the receiver's: it counts
// as no failure, and all streams of the callback pause.
func (o Outbox) Postpone(ctx context.Context, a domain.Attempt, pause time.Duration, reason string) error {
	_, err := exec(ctx, o.DB.pool, postponeSQL, a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Claim.ID, a.Delivery,
		pause, reason)
	return err
}

// Release ends the claim of a stream whose attempt was interrupted.
func (o Outbox) Release(ctx context.Context, a domain.Attempt) error {
	_, err := exec(ctx, o.DB.pool, `
update streams set `+due.ReleaseSQL+` where project_id = $1 and callback_id = $2 and stream = $3 and claim_id = $4`,
		a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Claim.ID)
	return err
}

const (
	// Streams s of callbacks c that wait longer than their turn; a condition on c follows.
	pausedStreamsSQL = `
select s.project_id, s.callback_id, s.stream from streams s
join callbacks c on c.project_id = s.project_id and c.id = s.callback_id
where s.head < s.tail and (s.attempts > 0 or s.next_at > now()) and `

	endPauseSQL = `
update streams set next_at = now(), attempts = 0, failing_since = null
where head < tail and (project_id, callback_id, stream) `
)

// endFreePauses has the streams of callbacks c that meet a condition retried now, except those that are locked.
func endFreePauses(ctx context.Context, db querier, condition string, args ...any) error {
	_, err := exec(ctx, db, endPauseSQL+"in ("+pausedStreamsSQL+condition+" for update of s skip locked)", args...)
	return err
}

// endPauses has all streams of callbacks c that meet a condition retried now. It waits for locked ones one by one and
// holds no lock meanwhile: deliverers lock a stream before its callback, and writers of events lock streams in an order
// of their own.
func (db *DB) endPauses(ctx context.Context, condition string, args ...any) error {
	if err := endFreePauses(ctx, db.pool, condition, args...); err != nil {
		return err
	}
	locked, err := queryAll[struct {
		ProjectID  string
		CallbackID uuid.UUID
		Stream     string
	}](ctx, db.pool, pausedStreamsSQL+condition, args...)
	for _, s := range locked {
		if _, err := exec(ctx, db.pool, endPauseSQL+"= ($1, $2, $3)", s.ProjectID, s.CallbackID, s.Stream); err != nil {
			return err
		}
	}
	return err
}
