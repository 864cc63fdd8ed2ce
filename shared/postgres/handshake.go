package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// handshakes limits the first handshakes of a project's callbacks, those of deleted callbacks included, to 10 a second.
// insertCallbackSQL delays those beyond a burst of 600. A callback that would wait for an hour is rejected.
var handshakes = apperr.Limit{Name: "handshake", Quota: 36_000, Window: time.Hour}

var claimHandshakesSQL = `
with pending as materialized (
    select project_id, id, coalesce(not_before, '-infinity') as since, ` + due.Unclaimed("c", "now()") + ` as is_due
    from callbacks c where status = 'pending' and coalesce(not_before, '-infinity') <= now()
), under_way as (
    select project_id, count(*) as n from pending where not is_due group by project_id
), due as materialized (
    select p.project_id, p.id, p.since,
        row_number() over (partition by p.project_id order by p.since) + coalesce(u.n, 0) as turn
    from pending p left join under_way u on u.project_id = p.project_id where p.is_due
)
update callbacks set claim_id = $1, claimed_until = now() + $2::interval
where (project_id, id) in (
    select c.project_id, c.id from due d join callbacks c on c.project_id = d.project_id and c.id = d.id
    where c.status = 'pending' and ` + due.Unclaimed("c", "now()") + `
    order by d.turn, d.since limit $3 for no key update of c skip locked
)
returning claim_id, project_id, id, url, failures as tries`

// ClaimHandshakes claims callbacks whose receivers have to be asked for their consent. Projects take turns: the one
// with the fewest handshakes under way is first, however many callbacks another has. It sets the Claim and Tries of
// an attempt, and its callback's ProjectID, ID and URL.
func (o Outbox) ClaimHandshakes(ctx context.Context, limit int, claimFor time.Duration) ([]domain.Attempt, error) {
	rows, err := queryAll[attemptRow](ctx, o.DB.pool, claimHandshakesSQL, uuid.New(), claimFor, limit)
	return attempts(rows), err
}

const verifiedSQL = `
with after as (
    update callbacks
    set status = 'verified', reason = '', allowed_rate = nullif($4, 0), seq = seq + 1, updated_at = now(),
        failures = 0, failing_since = null, not_before = null, ` + due.ReleaseSQL + `
    where project_id = $1 and id = $2 and claim_id = $3 and status = 'pending'
    returning *, 'pending' as previous_status
), event as (` + callbackEventSQL + ` after)
select status from after`

// MarkVerified records that the receiver consented to rate deliveries a minute (0 = any). It is domain.ErrFenced when
// another replica has the claim, or the callback was changed.
func (o Outbox) MarkVerified(ctx context.Context, a domain.Attempt, rate int) error {
	_, err := o.handshake(ctx, verifiedSQL, a, rate)
	return err
}

const unverifiedSQL = `
with before as (
    select * from callbacks where project_id = $1 and id = $2 and claim_id = $3 and status = 'pending' for no key update
), after as (
    update callbacks c
    set status = n.status, reason = $4, seq = c.seq + (n.status <> 'pending')::int, updated_at = now(),
        failures = c.failures + 1, failing_since = coalesce(c.failing_since, now()),
        not_before = least(now() + $5::interval, coalesce(c.failing_since, now()) + $6::interval),
        ` + due.ReleaseSQL + `
    from (select *, case when coalesce(failing_since, now()) + $6::interval <= now() then 'suspended'
        else 'pending' end as next
          from before) b,
         lateral (select b.next as status) n
    where c.project_id = b.project_id and c.id = b.id
    returning c.*, b.status as previous_status
), event as (` + callbackEventSQL + ` after where status <> previous_status)
select status from after`

// MarkUnverified records that the receiver did not consent, and asks it again after the pause. A callback whose
// receiver has not consented for longer than tryFor is suspended, as the status says.
func (o Outbox) MarkUnverified(
	ctx context.Context, a domain.Attempt, reason string, pause, tryFor time.Duration,
) (domain.CallbackStatus, error) {
	return o.handshake(ctx, unverifiedSQL, a, reason, pause, tryFor)
}

func (o Outbox) handshake(
	ctx context.Context, sql string, a domain.Attempt, more ...any,
) (status domain.CallbackStatus, err error) {
	args := append([]any{a.Callback.ProjectID, a.Callback.ID, a.Claim.ID}, more...)
	status, err = writeValue[domain.CallbackStatus](ctx, o.DB, sql, args...)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", domain.ErrFenced
	}
	return status, err
}
