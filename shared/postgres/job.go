package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Jobs are pieces of due work, each done by one copy at a time.
type Jobs struct{ DB *DB }

const claimJobSQL = `
insert into jobs as j (kind, key, claim_id, claimed_until, attempts)
values ($1, $2, $3, clock_timestamp() + $4, 1)
on conflict (kind, key) do update
set claim_id = $3, claimed_until = clock_timestamp() + $4, attempts = j.attempts + 1
where j.done_at is null and coalesce(j.claimed_until, '-infinity') < clock_timestamp()`

// Claim takes the job for a time, unless it is done or somebody holds it. held is false then.
func (j Jobs) Claim(ctx context.Context, kind, key string, claimFor time.Duration) (claim uuid.UUID, held bool, err error) {
	claim = uuid.New()
	tag, err := j.DB.pool.Exec(ctx, claimJobSQL, kind, key, claim, claimFor)
	return claim, tag.RowsAffected() == 1, classify(err)
}

// Done marks the job as done, if the claim still holds.
func (j Jobs) Done(ctx context.Context, kind, key string, claim uuid.UUID) error {
	_, err := j.DB.pool.Exec(ctx,
		"update jobs set done_at = clock_timestamp(), claimed_until = null, error = null where kind = $1 and key = $2 and claim_id = $3",
		kind, key, claim)
	return classify(err)
}

// Fail gives the job back with the reason, so that the next tick may try again at once.
func (j Jobs) Fail(ctx context.Context, kind, key string, claim uuid.UUID, reason error) error {
	_, err := j.DB.pool.Exec(ctx,
		"update jobs set claimed_until = null, error = $4 where kind = $1 and key = $2 and claim_id = $3",
		kind, key, claim, reason.Error())
	return classify(err)
}

// Postpone gives the job back with the reason. No tick may try again before the pause is over.
func (j Jobs) Postpone(ctx context.Context, kind, key string, claim uuid.UUID, reason error, pause time.Duration) error {
	_, err := j.DB.pool.Exec(ctx,
		"update jobs set claim_id = null, claimed_until = clock_timestamp() + $5::interval, error = $4 where kind = $1 and key = $2 and claim_id = $3",
		kind, key, claim, reason.Error(), pause)
	return classify(err)
}

// Renew prolongs the claim from now on, or says domain.ErrFenced.
func (j Jobs) Renew(ctx context.Context, kind, key string, claim uuid.UUID, claimFor time.Duration) error {
	tag, err := j.DB.pool.Exec(ctx,
		"update jobs set claimed_until = clock_timestamp() + $4 where kind = $1 and key = $2 and claim_id = $3 and claimed_until > clock_timestamp()",
		kind, key, claim, claimFor)
	if err == nil && tag.RowsAffected() == 0 {
		return domain.ErrFenced
	}
	return classify(err)
}

// Release makes a job free again that is never done: work that comes back.
func (j Jobs) Release(ctx context.Context, kind, key string, claim uuid.UUID) error {
	_, err := j.DB.pool.Exec(ctx,
		"update jobs set claimed_until = null, error = null where kind = $1 and key = $2 and claim_id = $3", kind, key, claim)
	return classify(err)
}

// Forget removes jobs that were made longer ago than age.
func (j Jobs) Forget(ctx context.Context, age time.Duration) error {
	_, err := j.DB.pool.Exec(ctx, "delete from jobs where created_at < now() - $1::interval", age)
	return classify(err)
}
