package postgres

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// endConnectionSQL ends a connection and wipes its secret; an end of a higher rank follows one of a lower, and never itself. With $6 it
// only ends while its delegation is still of that generation, and with $7 only if its time is over.
const endConnectionSQL = `
with before as (
    select id, ` + shownStatus + ` as status from connections
    where project_id = $1 and id = $2 and status <> 'deleted' and (status = 'active' or $3 = 'deleted')
      and ($6::integer = 0 or generation = $6) and (not $7::boolean or ` + endsAt + ` <= clock_timestamp())
    for no key update
), after as (
    update connections c
    set status = $3, reason = $4, secret = null, suspended_at = null, revoked = c.revoked or $5, seq = c.seq + 1, updated_at = clock_timestamp()
    from before b where c.id = b.id
    returning c.project_id, c.id, c.seq, c.updated_at, c.status, c.reason, b.status as previous_status, $8::jsonb as actor
), event as (` + connectionEventSQL + ` after)
select count(*) from after`

// End ends a connection: its secret is wiped, and nobody acts through it any more. revoked says that nothing of it is left in
// Keystone that could be taken back. ended is false when it had ended so already.
func (c Connections) End(
	ctx context.Context, projectID string, id uuid.UUID, status domain.ConnectionStatus, reason string, revoked bool,
) (ended bool, err error) {
	return c.end(ctx, projectID, id, status, reason, revoked, 0, false)
}

// Lose ends a connection whose delegation Keystone does not accept, unless it has been given another one since.
func (c Connections) Lose(ctx context.Context, lost domain.Connection, reason string, revoked bool) (ended bool, err error) {
	return c.end(ctx, lost.ProjectID, lost.ID, domain.ConnectionLost, reason, revoked, lost.Generation, false)
}

// Expire ends a connection whose time is over, unless it has been given more since.
func (c Connections) Expire(ctx context.Context, over domain.Connection, reason string, revoked bool) (ended bool, err error) {
	return c.end(ctx, over.ProjectID, over.ID, domain.ConnectionExpired, reason, revoked, 0, true)
}

func (c Connections) end(
	ctx context.Context, projectID string, id uuid.UUID, status domain.ConnectionStatus, reason string, revoked bool, generation int, onlyOver bool,
) (ended bool, err error) {
	var n int
	err = again(func() error {
		return c.DB.pool.QueryRow(ctx, endConnectionSQL, projectID, id, status, reason, revoked, generation, onlyOver, domain.ActorIn(ctx)).Scan(&n)
	})
	return n == 1, classify(err)
}
