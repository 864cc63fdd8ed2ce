package postgres

import (
	"bytes"
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// KeyedActions are actions with a project's own token that their callers gave an id. One replica at a time works on an
// action (claim.go).
type KeyedActions struct{ DB *DB }

var (
	// The first attempt inserts the row. A later one claims it when the claim has expired without a result.
	beginKeyedSQL = `
insert into keyed_actions as k (project_id, id, body_sha256, claim_id, claimed_until)
values ($1, $2, $3, $4, clock_timestamp() + $5::interval)
on conflict (project_id, id) do update set claim_id = excluded.claim_id, claimed_until = excluded.claimed_until
where k.body_sha256 = excluded.body_sha256 and k.result is null and ` + unclaimed("k") + `
returning xmax <> 0 as resumed, created_at, deployment_id as deployment`

	findKeyedSQL = `
select body_sha256, result, greatest(claimed_until - clock_timestamp(), interval '0') as claimed_for
from keyed_actions where project_id = $1 and id = $2`
)

// Begin claims the action for the time given, or gives its Result if it is done. It is a Conflict when the id belongs
// to another action, and one with RetryAfter while another replica works on it.
func (k KeyedActions) Begin(
	ctx context.Context, key domain.ActionKey, claimFor time.Duration,
) (domain.KeyedAction, error) {
	claim := domain.NewClaim()
	for try := 1; ; try++ {
		action, begun, err := queryFound[domain.KeyedAction](ctx, k.DB.pool, beginKeyedSQL,
			key.ProjectID, key.ID, key.BodySHA256, claim.ID, claimFor)
		action.ActionKey, action.Claim = key, claim
		if err != nil || begun {
			return action, err
		}
		stored, found, err := queryFound[struct {
			BodySHA256 []byte
			Result     *domain.ActionResult
			ClaimedFor time.Duration
		}](ctx, k.DB.pool, findKeyedSQL, key.ProjectID, key.ID)
		switch {
		case err != nil:
			return action, err
		case !found && try < vanishedTries && flow.Sleep(ctx, vanishedPause): // abandoned meanwhile
			continue
		case !found:
			return action, inProgress(0, "action %s is in progress: send the same request again", key.ID)
		case !bytes.Equal(stored.BodySHA256, key.BodySHA256):
			return action, otherAction(key.ID)
		case stored.Result == nil:
			return action, inProgress(stored.ClaimedFor,
				"action %s is in progress: send the same request again", key.ID)
		}
		action.Result = stored.Result
		return action, nil
	}
}

func otherAction(id uuid.UUID) error {
	return apperr.New(apperr.Conflict, "id %s belongs to another action: the same id needs the same request", id)
}

// RecordDeployment records the deployment that Nova is about to rebuild the server for.
func (k KeyedActions) RecordDeployment(
	ctx context.Context, action domain.KeyedAction, deployment uuid.UUID,
) error {
	return k.write(ctx, "update keyed_actions set deployment_id = $4 where "+keyedClaimedSQL, action, deployment)
}

// Finish records the result, which later requests for the action get.
func (k KeyedActions) Finish(ctx context.Context, action domain.KeyedAction, result domain.ActionResult) error {
	const sql = "update keyed_actions set result = $4, " + due.ReleaseSQL + " where " + keyedClaimedSQL
	return k.write(ctx, sql, action, result)
}

// Abandon deletes an action that was rejected: nothing was done, and the id is free.
func (k KeyedActions) Abandon(ctx context.Context, action domain.KeyedAction) error {
	return k.write(ctx, "delete from keyed_actions where "+keyedClaimedSQL, action)
}

// Release ends the claim after a pause. The next attempt finds out whether Nova accepted the action.
func (k KeyedActions) Release(ctx context.Context, action domain.KeyedAction, pause time.Duration) error {
	return k.write(ctx, "update keyed_actions set claimed_until = clock_timestamp() + $4::interval where "+
		keyedClaimedSQL, action, pause)
}

const keyedClaimedSQL = "project_id = $1 and id = $2 and claim_id = $3 and result is null"

// write is domain.ErrFenced when another replica has claimed the action since.
func (k KeyedActions) write(ctx context.Context, sql string, action domain.KeyedAction, more ...any) error {
	args := append([]any{action.ProjectID, action.ID, action.Claim.ID}, more...)
	return fenced(exec(ctx, k.DB.pool, sql, args...))
}
