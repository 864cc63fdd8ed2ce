package postgres

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const postponeSQL = `
with after as (
    update streams s set next_at = now() + $6::interval, ` + releaseSQL + `
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
update streams set `+releaseSQL+` where project_id = $1 and callback_id = $2 and stream = $3 and claim_id = $4`,
		a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Claim.ID)
	return err
}
