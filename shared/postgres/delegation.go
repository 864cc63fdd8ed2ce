package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Delegations are what run-connections works with: connections with their secrets, and the work that waits for them.
//
// Its lists look at all projects, because run-connections serves all; every other statement names its own.
type Delegations struct{ DB *DB }

const delegationColumns = connectionColumns + `, secret`

func scanDelegation(row pgx.CollectableRow) (c domain.Connection, err error) {
	var secret []byte
	c, err = scanConnection(withMore{row, []any{&secret}})
	c.Secret = secret
	return c, err
}

const (
	endsAt = `least(expires_at, coalesce(last_used_at, created_at) + idle_timeout)`

	// Those whose time is over, and trusts that are still to be taken back.
	endingSQL = `
select ` + delegationColumns + ` from connections
where status = 'active' and ` + endsAt + ` <= clock_timestamp()
   or status <> 'active' and not revoked and coalesce(not_before, '-infinity') <= clock_timestamp()
order by expires_at limit $1`

	// Those for which there is something to do that nobody does. One whose cloud gave no answer is left alone for a while; for one
	// that has ended no cloud is asked. They come in no order: those that came first each time would have all hands to themselves.
	workSQL = `
select ` + delegationColumns + ` from connections c
where (c.status <> 'active' or c.suspended_at is null and coalesce(not_before, '-infinity') <= clock_timestamp())
  and ((c.project_id, c.id) in (select o.project_id, o.connection_id from orders o where o.status = 'running' and o.connection_id is not null
                                and coalesce(o.claimed_until, '-infinity') < clock_timestamp())
    or (c.project_id, c.id) in (select a.project_id, a.connection_id from actions a where a.status = 'running'
                                and coalesce(a.claimed_until, '-infinity') < clock_timestamp()))
order by random() limit $1`
)

// Ending lists connections whose time is over, and ended ones whose trust is still to be taken back.
func (d Delegations) Ending(ctx context.Context, limit int) ([]domain.Connection, error) {
	return d.list(ctx, endingSQL, limit)
}

// Work lists connections with orders or actions that wait, whatever their status.
func (d Delegations) Work(ctx context.Context, limit int) ([]domain.Connection, error) {
	return d.list(ctx, workSQL, limit)
}

func (d Delegations) list(ctx context.Context, sql string, args ...any) ([]domain.Connection, error) {
	rows, _ := d.DB.pool.Query(ctx, sql, args...)
	found, err := pgx.CollectRows(rows, scanDelegation)
	return found, classify(err)
}

// Current reads a connection as it is now, with its secret.
func (d Delegations) Current(ctx context.Context, projectID string, id uuid.UUID) (domain.Connection, error) {
	rows, _ := d.DB.pool.Query(ctx, "select "+delegationColumns+" from connections where project_id = $1 and id = $2", projectID, id)
	c, err := pgx.CollectExactlyOneRow(rows, scanDelegation)
	return c, classify(err)
}

// Status is how a connection is now, and why.
func (d Delegations) Status(ctx context.Context, projectID string, id uuid.UUID) (status domain.ConnectionStatus, reason string, err error) {
	err = d.DB.pool.QueryRow(ctx, "select "+shownStatus+", reason from connections where project_id = $1 and id = $2", projectID, id).Scan(&status, &reason)
	return status, reason, classify(err)
}

// MarkReachable notes that the connection's cloud answers, and what flavors it has (nil = not asked for).
func (d Delegations) MarkReachable(ctx context.Context, projectID string, id uuid.UUID, flavors []domain.Flavor) error {
	_, err := d.DB.pool.Exec(ctx, `
update connections set failures = 0, silent_since = null, not_before = null, flavors = coalesce($3, flavors)
where project_id = $1 and id = $2 and (failures > 0 or silent_since is not null or not_before is not null or $3::jsonb is not null)`, projectID, id, orNullJSON(flavors))
	return classify(err)
}

func orNullJSON(flavors []domain.Flavor) any {
	if flavors == nil {
		return nil
	}
	return flavors
}

// MarkUnreachable notes that the connection's cloud gave no answer, and leaves it alone for a pause: first, then twice as long each time,
// up to longest. Of several that find it silent at once the first counts.
func (d Delegations) MarkUnreachable(ctx context.Context, projectID string, id uuid.UUID, first, longest time.Duration) error {
	_, err := d.DB.pool.Exec(ctx, `
update connections
set failures = failures + 1, silent_since = coalesce(silent_since, clock_timestamp()), not_before = clock_timestamp() + least($3::interval * power(2, least(failures, 20)), $4::interval)
where project_id = $1 and id = $2 and coalesce(not_before, '-infinity') <= clock_timestamp()`, projectID, id, first, longest)
	return classify(err)
}

const openOrdersSQL = `
select id from orders
where project_id = $1 and connection_id = $2 and status = 'running' and coalesce(claimed_until, '-infinity') < clock_timestamp()
order by updated_at limit $3`

// Orders lists the connection's orders that are running and that nobody works on: those first on which nobody worked for the longest,
// so that one that cannot be ended keeps no other waiting.
func (d Delegations) Orders(ctx context.Context, projectID string, connection uuid.UUID, limit int) ([]uuid.UUID, error) {
	rows, _ := d.DB.pool.Query(ctx, openOrdersSQL, projectID, connection, limit)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return ids, classify(err)
}

// Postpone leaves an order that nobody works on alone for a pause.
func (d Delegations) Postpone(ctx context.Context, projectID string, order uuid.UUID, pause time.Duration) error {
	_, err := d.DB.pool.Exec(ctx, `
update orders set claimed_until = clock_timestamp() + $3::interval where project_id = $1 and id = $2 and status = 'running' and claim_id is null`,
		projectID, order, pause)
	return classify(err)
}

// What waits for a connection's cloud to answer again is none that is soon done. Nor is what has been moving for long.
const busySQL = `
with awake as (
    select id, status = 'active' and suspended_at is not null as is_suspended from connections
    where status <> 'active' or coalesce(not_before, '-infinity') <= clock_timestamp()
)
select exists (select from orders where status = 'running' and connection_id in (select id from awake where not is_suspended))
    or exists (select from actions where status = 'running' and connection_id in (select id from awake where not is_suspended))
    or exists (select from instances where remote and connection_id in (select id from awake) and server_id is not null
               and state = any($1) and updated_at > clock_timestamp() - $2::interval)
    or exists (select from connections where status <> 'active' and not revoked and kind = 'trust' and coalesce(not_before, '-infinity') <= clock_timestamp())
    or exists (select from trusts_to_revoke t where ` + oldTrustDue + `)
    or exists (select from connections where status = 'active' and next_check_at <= clock_timestamp()
               and coalesce(check_until, '-infinity') <= clock_timestamp() + interval '2 seconds')`

// Busy says whether there is work in progress through any connection, whoever does it: so that it pays to look again soon.
// Instances in other clouds count that Nova is at work on, if they changed within the time given; trusts that are to be taken back, which
// has to be done before their time is over; and checks that are due.
func (d Delegations) Busy(ctx context.Context, within time.Duration) (busy bool, err error) {
	err = d.DB.pool.QueryRow(ctx, busySQL, domain.MovingStates(), within).Scan(&busy)
	return busy, classify(err)
}

const (
	retireDelegatedSQL = `
with old as (
    delete from actions where status <> 'running' and updated_at < now() - $1::interval
), old_keyed as (
    delete from keyed_actions where created_at < now() - $1::interval
)
delete from deployments where created_at < now() - $1::interval
  and exists (select from deployments later where later.project_id = deployments.project_id and later.instance_id = deployments.instance_id
              and later.created_at > deployments.created_at)`

	// One whose trust Keystone may still have stays, however old it is.
	retireConnectionsSQL = `
delete from connections c
where status <> 'active' and revoked and updated_at < now() - $1::interval
  and not exists (select from trusts_to_revoke t where t.connection_id = c.id)
  and not exists (select from actions a where a.connection_id = c.id)
  and not exists (select from instances i where i.connection_id = c.id and i.state <> 'deleted')`

	// The bundles that nobody may fetch any more.
	wipeBundlesSQL = `
update deployments d set bundle = null
where d.bundle is not null and not exists (select from instances i where ` + permittedSQL + `)`
)

// Retire deletes actions that ended longer ago than age, deployments that others have followed, and the bundles that nobody may fetch;
// and connections that ended longer ago than connectionAge, when nothing runs through them any more and Keystone has no trust of theirs.
func (d Delegations) Retire(ctx context.Context, age, connectionAge time.Duration) error {
	if _, err := d.DB.pool.Exec(ctx, wipeBundlesSQL); err != nil {
		return classify(err)
	}
	if _, err := d.DB.pool.Exec(ctx, retireDelegatedSQL, age); err != nil {
		return classify(err)
	}
	_, err := d.DB.pool.Exec(ctx, retireConnectionsSQL, connectionAge)
	return classify(err)
}
