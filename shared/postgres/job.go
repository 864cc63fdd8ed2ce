package postgres

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Jobs are pieces of due work, each done by one replica at a time. Periodic ones have a time at which they are due.
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

// Fail releases the job with the reason, so that the next event may retry immediately.
func (j Jobs) Fail(ctx context.Context, kind, key string, claim domain.Claim, reason error) error {
	_, err := j.write(ctx, "claimed_until = null, error = $4", "", kind, key, claim, reason.Error())
	return err
}

// Postpone releases the job with the reason. No event may retry before the pause has ended.
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

// Forget deletes jobs that were made longer ago than age, except periodic ones.
func (j Jobs) Forget(ctx context.Context, age time.Duration) error {
	_, err := exec(ctx, j.DB.pool, "delete from jobs where created_at < now() - $1::interval and due_at is null", age)
	return err
}

const (
	// A job that becomes periodic is due now; one that is stays due when it was.
	registerJobsSQL = `
with switched_off as (
    delete from jobs where kind = $1 and due_at is not null and not key = any($2::text[])
)
insert into jobs as j (kind, key, due_at) select $1, key, clock_timestamp() from unnest($2::text[]) key
on conflict (kind, key) do update set due_at = clock_timestamp() where j.due_at is null`

	// dueAt is when a job is due again: $1 to $3 are a due.Next.
	dueAt = `case when $3 then 'infinity' when $1::interval > interval '0' then clock_timestamp() + $1
        else date_trunc('minute', clock_timestamp() - make_interval(secs => $2::int))
            + make_interval(mins => 1, secs => $2::int) end`

	finishJobSQL = `
update jobs set due_at = ` + dueAt + `, error = $7, ` + due.ReleaseSQL + `
where kind = $4 and key = $5 and claim_id = $6`

	scheduleJobSQL = `update jobs set due_at = ` + dueAt + ` where kind = $4 and key = $5`
)

var (
	listDueJobsSQL = `select key from jobs j where kind = $1 and due_at <= now() and ` + due.Unclaimed("j", "now()")

	claimDueJobSQL = `
update jobs j
set claim_id = $3, claimed_until = clock_timestamp() + $4::interval, attempts = attempts + 1
where kind = $1 and key = $2 and due_at <= clock_timestamp() and ` + unclaimed("j")
)

// Register implements due.Jobs.
func (j Jobs) Register(ctx context.Context, kind string, keys []string) error {
	_, err := exec(ctx, j.DB.pool, registerJobsSQL, kind, orEmpty(keys))
	return err
}

// ListDue implements due.Jobs.
func (j Jobs) ListDue(ctx context.Context, kind string) ([]string, error) {
	return queryColumn[string](ctx, j.DB.pool, listDueJobsSQL, kind)
}

// ClaimDue claims a periodic job that is due, unless another replica has claimed it.
func (j Jobs) ClaimDue(ctx context.Context, kind, key string, claimFor time.Duration) (domain.Claim, error) {
	return acquire(ctx, j.DB.pool, claimDueJobSQL, kind, key, claimFor)
}

// Finish releases a periodic job, which is due again. failure is why it was not done; nil = it was. It does nothing
// when another replica has claimed the job since.
func (j Jobs) Finish(
	ctx context.Context, kind, key string, claim domain.Claim, next due.Next, failure error,
) error {
	var reason *string
	if failure != nil {
		text := failure.Error()
		reason = &text
	}
	_, err := exec(ctx, j.DB.pool, finishJobSQL, next.In, next.Second, next.Never, kind, key, claim.ID, reason)
	return err
}

// Schedule sets when a periodic job is due, no matter who has claimed it.
func (j Jobs) Schedule(ctx context.Context, kind, key string, next due.Next) error {
	_, err := exec(ctx, j.DB.pool, scheduleJobSQL, next.In, next.Second, next.Never, kind, key)
	return err
}
