package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const claimHandshakesSQL = `
update callbacks set claim_id = $1, claimed_until = now() + $2::interval
where (project_id, id) in (
    select project_id, id from callbacks
    where status = 'pending' and coalesce(not_before, '-infinity') <= now() and coalesce(claimed_until, '-infinity') < now()
    order by not_before nulls first limit $3 for no key update skip locked
)
returning claim_id, project_id, id, url, failures`

// ClaimHandshakes takes callbacks whose receivers are to be asked for their consent. Of an attempt the Claim, the
// callback's ProjectID, ID and URL, and Tries count.
func (o Outbox) ClaimHandshakes(ctx context.Context, limit int, claimFor time.Duration) ([]domain.Attempt, error) {
	rows, _ := o.DB.pool.Query(ctx, claimHandshakesSQL, uuid.New(), claimFor, limit)
	attempts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a domain.Attempt, err error) {
		err = row.Scan(&a.Claim, &a.Callback.ProjectID, &a.Callback.ID, &a.Callback.URL, &a.Tries)
		return a, err
	})
	return attempts, classify(err)
}

const verifiedSQL = `
with after as (
    update callbacks
    set status = 'verified', reason = '', allowed_rate = nullif($4, 0), seq = seq + 1, updated_at = now(),
        failures = 0, failing_since = null, not_before = null, claim_id = null, claimed_until = null
    where project_id = $1 and id = $2 and claim_id = $3 and status = 'pending'
    returning *, 'pending' as previous_status
), event as (` + callbackEventSQL + ` after)
select status from after`

// Verified writes that the receiver consented, to rate deliveries a minute (0 = any). domain.ErrFenced when the claim
// has passed on, or the callback is another by now.
func (o Outbox) Verified(ctx context.Context, a domain.Attempt, rate int) error {
	_, err := o.handshake(ctx, verifiedSQL, a, rate)
	return err
}

const refusedSQL = `
with before as (
    select * from callbacks where project_id = $1 and id = $2 and claim_id = $3 and status = 'pending' for no key update
), after as (
    update callbacks c
    set status = n.status, reason = $4, seq = c.seq + (n.status <> 'pending')::int, updated_at = now(),
        failures = c.failures + 1, failing_since = coalesce(c.failing_since, now()),
        not_before = least(now() + $5::interval, coalesce(c.failing_since, now()) + $6::interval), claim_id = null, claimed_until = null
    from (select *, case when coalesce(failing_since, now()) + $6::interval <= now() then 'suspended' else 'pending' end as next from before) b,
         lateral (select b.next as status) n
    where c.project_id = b.project_id and c.id = b.id
    returning c.*, b.status as previous_status
), event as (` + callbackEventSQL + ` after where status <> previous_status)
select status from after`

// Refused writes that the receiver did not consent, and when it is asked again. After giveUp the callback is suspended;
// the status says whether it is.
func (o Outbox) Refused(ctx context.Context, a domain.Attempt, reason string, pause, giveUp time.Duration) (domain.CallbackStatus, error) {
	return o.handshake(ctx, refusedSQL, a, reason, pause, giveUp)
}

func (o Outbox) handshake(ctx context.Context, sql string, a domain.Attempt, more ...any) (status domain.CallbackStatus, err error) {
	args := append([]any{a.Callback.ProjectID, a.Callback.ID, a.Claim}, more...)
	err = again(func() error { return o.DB.pool.QueryRow(ctx, sql, args...).Scan(&status) })
	if errors.Is(err, pgx.ErrNoRows) {
		return "", domain.ErrFenced
	}
	return status, classify(err)
}
