package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// KeyedRequests are requests with an Idempotency-Key. One replica at a time works on a request (claim.go).
type KeyedRequests struct{ DB *DB }

// keyTime is how long a key is kept.
const keyTime = 24 * time.Hour

// keyLimit bounds what a project has stored: a key counts once, and once more for each keyUnit of its response. A
// request that changed nothing leaves no key.
var keyLimit = apperr.Limit{Name: "idempotency-key", Quota: 100_000, Window: keyTime}

const keyUnit = 4 << 10 // bytes

var (
	// The first attempt inserts the row if keyLimit permits. A later one claims it when the claim has expired without
	// a response. An expired key is used as a new one, with a new resource_id.
	beginRequestSQL = `
insert into idempotency_keys as k (project_id, key_id, request_mac, resource_id, claim_id, claimed_until, expires_at)
select $1::text, $2::bytea, $3::bytea, $4::uuid, $5::uuid, clock_timestamp() + $6::interval,
    clock_timestamp() + $7::interval
where exists (select from idempotency_keys where project_id = $1 and key_id = $2)
   or not exists (select from rate_limits
                  where name = $8 and source = $1 and used_up > clock_timestamp() + $9::interval)
on conflict (project_id, key_id) do update
set request_mac = excluded.request_mac, response = null, claim_id = excluded.claim_id,
    claimed_until = excluded.claimed_until,
    resource_id = case when k.expires_at > clock_timestamp() then k.resource_id else excluded.resource_id end,
    expires_at = case when k.expires_at > clock_timestamp() then k.expires_at else excluded.expires_at end
where ` + unclaimed("k") + `
  and (k.expires_at <= clock_timestamp() or k.request_mac = excluded.request_mac and k.response is null)
returning resource_id as id, resource_id <> $4 as resumed`

	findRequestSQL = `
select request_mac as hash, response as result, greatest(claimed_until - clock_timestamp(), interval '0') as claimed_for
from idempotency_keys where project_id = $1 and key_id = $2`

	keyWaitSQL = "select greatest(interval '0', " + waitSQL + ")"

	keepRequestSQL = `
with kept as (
    update idempotency_keys set response = $4, ` + due.ReleaseSQL + ` where ` + keyClaimedSQL + ` returning project_id
)
insert into rate_limits as l (name, source, used_up)
select $5::text, project_id, clock_timestamp() + $6::interval from kept
on conflict (name, source) do update set used_up = greatest(l.used_up, clock_timestamp()) + $6`
)

// Begin claims the request for the time given, or returns its Response if it is done. It is Unprocessable when the key
// belongs to another request, a Conflict with RetryAfter while another replica works on it, and RateLimited when the
// project has too many keys for a new one.
func (k KeyedRequests) Begin(
	ctx context.Context, request domain.KeyedRequest, claimFor time.Duration,
) (domain.KeyedRequest, error) {
	claim := domain.NewClaim()
	begun, response, err := begin[struct {
		ID      uuid.UUID
		Resumed bool
	}](ctx, k.DB.pool, keyed{
		beginSQL: beginRequestSQL, args: []any{
			request.ProjectID, request.KeyID, request.RequestMAC, uuid.Must(uuid.NewV7()), claim.ID, claimFor, keyTime,
			keyLimit.Name, keyLimit.Window - keyLimit.Each(),
		},
		hash: request.RequestMAC, findSQL: findRequestSQL,
		other: apperr.New(apperr.Unprocessable,
			"this Idempotency-Key belongs to another request: the same key needs the same request"),
		busy: "the request with this Idempotency-Key is in progress: send it again",
		full: func() error {
			return within(ctx, k.DB.pool, keyWaitSQL, keyLimit, request.ProjectID,
				"this project with an Idempotency-Key")
		},
	})
	request.ID, request.Resumed, request.Claim, request.Response = begun.ID, begun.Resumed, claim, response
	return request, err
}

// Finish stores the response, which later attempts get.
func (k KeyedRequests) Finish(ctx context.Context, request domain.KeyedRequest, response []byte) error {
	units := len(response) / keyUnit
	if !request.Resumed {
		units++ // for the key
	}
	return k.write(ctx, keepRequestSQL, request, response, keyLimit.Name, time.Duration(units)*keyLimit.Each())
}

// Release ends the claim. The next attempt finds out what the request has made.
func (k KeyedRequests) Release(ctx context.Context, request domain.KeyedRequest) error {
	return k.Finish(ctx, request, nil)
}

// Abandon deletes a request that was rejected: nothing was done, and the key is free.
func (k KeyedRequests) Abandon(ctx context.Context, request domain.KeyedRequest) error {
	return k.write(ctx, "delete from idempotency_keys where "+keyClaimedSQL, request)
}

const keyClaimedSQL = "project_id = $1 and key_id = $2 and claim_id = $3 and response is null"

// write is domain.ErrFenced when another replica has claimed the request since.
func (k KeyedRequests) write(ctx context.Context, sql string, request domain.KeyedRequest, more ...any) error {
	args := append([]any{request.ProjectID, request.KeyID, request.Claim.ID}, more...)
	return fenced(exec(ctx, k.DB.pool, sql, args...))
}

const deleteKeysSQL = `
delete from idempotency_keys where expires_at <= now() and (project_id, key_id) in (
    select project_id, key_id from idempotency_keys where expires_at <= now() order by expires_at limit $1)`

// deleteKeys deletes keys that have expired.
func (r Retention) deleteKeys(ctx context.Context, until time.Time) (done bool, err error) {
	for time.Now().Before(until) {
		n, err := exec(ctx, r.DB.pool, deleteKeysSQL, retentionRows)
		if err != nil || n < retentionRows {
			return err == nil, err
		}
	}
	return false, nil
}
