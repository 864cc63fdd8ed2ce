package postgres

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// KeyedActions are the actions with a project's own token that their callers gave an id. One replica at a time works on
// each, by a claim that ends by itself; every write carries the claim.
type KeyedActions struct{ DB *DB }

const (
	// The first attempt inserts the row. A later one gets the claim when that has ended without a result.
	beginKeyedSQL = `
insert into keyed_actions as k (project_id, id, body_sha256, claim_id, claimed_until)
values ($1, $2, $3, $4, clock_timestamp() + $5::interval)
on conflict (project_id, id) do update set claim_id = excluded.claim_id, claimed_until = excluded.claimed_until
where k.body_sha256 = excluded.body_sha256 and k.result is null and k.claimed_until < clock_timestamp()
returning xmax <> 0, created_at, coalesce(deployment_id, '00000000-0000-0000-0000-000000000000')`

	findKeyedSQL = `
select body_sha256, result, ceil(extract(epoch from greatest(claimed_until - clock_timestamp(), interval '0')))::int
from keyed_actions where project_id = $1 and id = $2`
)

// Begin claims the action for the time given, or gives its Result if it is done. It is a Conflict when the id is
// another action's, and one with RetryAfter while another replica works on it.
func (k KeyedActions) Begin(ctx context.Context, key domain.ActionKey, claimFor time.Duration) (domain.KeyedAction, error) {
	action := domain.KeyedAction{ActionKey: key, Claim: uuid.New()}
	for {
		err := k.DB.pool.QueryRow(ctx, beginKeyedSQL, key.ProjectID, key.ID, key.BodySHA256, action.Claim, claimFor).
			Scan(&action.Resumed, &action.CreatedAt, &action.Deployment)
		if !errors.Is(err, pgx.ErrNoRows) {
			return action, classify(err)
		}
		var hash []byte
		var wait int
		err = k.DB.pool.QueryRow(ctx, findKeyedSQL, key.ProjectID, key.ID).Scan(&hash, &action.Result, &wait)
		switch {
		case errors.Is(err, pgx.ErrNoRows): // abandoned meanwhile
			continue
		case err != nil:
			return action, classify(err)
		case !bytes.Equal(hash, key.BodySHA256):
			return action, otherAction(key.ID)
		case action.Result == nil:
			busy := apperr.New(apperr.Conflict, "action %s is being worked on: send the same request again", key.ID)
			busy.RetryAfter = min(time.Duration(max(wait, 1))*time.Second, 2*time.Second)
			return action, busy
		}
		return action, nil
	}
}

func otherAction(id uuid.UUID) error {
	return apperr.New(apperr.Conflict, "id %s is another action's: the same id needs the same request", id)
}

// Deploying records the deployment that Nova is asked to rebuild the server for.
func (k KeyedActions) Deploying(ctx context.Context, action domain.KeyedAction, deployment uuid.UUID) error {
	return k.write(ctx, "update keyed_actions set deployment_id = $4 where "+heldKeyedSQL, action, deployment)
}

// Finish records what the caller is answered: whoever sends the action again gets the same.
func (k KeyedActions) Finish(ctx context.Context, action domain.KeyedAction, result domain.ActionResult) error {
	return k.write(ctx, "update keyed_actions set result = $4, claim_id = null, claimed_until = null where "+heldKeyedSQL, action, result)
}

// Abandon forgets an action that was refused: nothing was done, and the id is free.
func (k KeyedActions) Abandon(ctx context.Context, action domain.KeyedAction) error {
	return k.write(ctx, "delete from keyed_actions where "+heldKeyedSQL, action)
}

// Release ends the claim after a pause. The next attempt finds out whether Nova accepted the action.
func (k KeyedActions) Release(ctx context.Context, action domain.KeyedAction, pause time.Duration) error {
	return k.write(ctx, "update keyed_actions set claimed_until = clock_timestamp() + $4::interval where "+heldKeyedSQL, action, pause)
}

const heldKeyedSQL = "project_id = $1 and id = $2 and claim_id = $3 and result is null"

// write is domain.ErrFenced when the claim has passed on.
func (k KeyedActions) write(ctx context.Context, sql string, action domain.KeyedAction, more ...any) error {
	tag, err := k.DB.pool.Exec(ctx, sql, append([]any{action.ProjectID, action.ID, action.Claim}, more...)...)
	if err == nil && tag.RowsAffected() == 0 {
		return domain.ErrFenced
	}
	return classify(err)
}
