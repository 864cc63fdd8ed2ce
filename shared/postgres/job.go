package postgres

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Jobs are pieces of due work, each done by one replica at a time.
type Jobs struct{ DB *DB }

var claimJobSQL = `
insert into jobs as j (kind, key, claim_id, claimed_until, attempts)
values ($1, $2, $3, clock_timestamp() + $4::interval, 1)
on conflict (kind, key) do update
set claim_id = $3, claimed_until = clock_timestamp() + $4::interval, attempts = j.attempts + 1
where j.done_at is null and ` + unclaimed("j")

// Claim claims the job, unless it is done or another replica has claimed it.
func (j Jobs) Claim(ctx context.Context, kind, key string, claimFor time.Duration) (domain.Claim, error) {
	return acquire(ctx, j.DB.pool, claimJobSQL, kind, key, claimFor)
}

// Done marks the job as done, if the claim still holds.
func (j Jobs) Done(ctx context.Context, kind, key string, claim domain.Claim) error {
	_, err := j.write(ctx, "done_at = clock_timestamp(), claimed_until = null, error = null", "", kind, key, claim)
	return err
}

// Fail releases the job with the reason, so that the next tick may retry at once.
func (j Jobs) Fail(ctx context.Context, kind, key string, claim domain.Claim, reason error) error {
	_, err := j.write(ctx, "claimed_until = null, error = $4", "", kind, key, claim, reason.Error())
	return err
}

// Postpone releases the job with the reason. No tick may retry before the pause is over.
func (j Jobs) Postpone(
	ctx context.Context, kind, key string, claim domain.Claim, reason error, pause time.Duration,
) error {
	_, err := j.write(ctx, "claim_id = null, claimed_until = clock_timestamp() + $5::interval, error = $4", "",
		kind, key, claim, reason.Error(), pause)
	return err
}

// Renew prolongs the claim from now on. It is domain.ErrFenced when the claim has ended.
func (j Jobs) Renew(ctx context.Context, kind, key string, claim domain.Claim, claimFor time.Duration) error {
	return fenced(j.write(ctx, "claimed_until = clock_timestamp() + $4::interval",
		" and claimed_until > clock_timestamp()",
		kind, key, claim, claimFor))
}

// Release releases a job that is never done: recurring work.
func (j Jobs) Release(ctx context.Context, kind, key string, claim domain.Claim) error {
	_, err := j.write(ctx, "claimed_until = null, error = null", "", kind, key, claim)
	return err
}

// write changes a job under its claim.
func (j Jobs) write(
	ctx context.Context, set, condition, kind, key string, claim domain.Claim, more ...any,
) (int64, error) {
	return exec(ctx, j.DB.pool, "update jobs set "+set+" where kind = $1 and key = $2 and claim_id = $3"+condition,
		append([]any{kind, key, claim.ID}, more...)...)
}

// Forget deletes jobs that were made longer ago than age.
func (j Jobs) Forget(ctx context.Context, age time.Duration) error {
	_, err := exec(ctx, j.DB.pool, "delete from jobs where created_at < now() - $1::interval", age)
	return err
}
