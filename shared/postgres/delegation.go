package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Delegations are what run-connections works with: connections with their secrets, and the work that waits for them.
//
// Its lists span all projects, because run-connections serves all; every other statement carries a project.
type Delegations struct{ DB *DB }

const delegationColumns = connectionColumns + `, secret`

var (
	// Connections that have expired, and trusts that have to be revoked: an index has each in its order.
	endingSQL = `
with ending as (
    (select id from connections where status = 'active' and expires_at <= now() order by expires_at limit $1)
    union all
    (select id from connections where ` + idleBy("now()") + ` limit $1)
    union all
    (select id from connections
    where status <> 'active' and not revoked and coalesce(not_before, '-infinity') <= now()
    order by coalesce(not_before, '-infinity') limit $1)
)
select ` + delegationColumns + ` from connections where id in (select id from ending) order by expires_at limit $1`

	// Connections with work that no one has claimed. One whose cloud gave no answer waits until not_before; one that
	// has ended needs no cloud. The order is random: a fixed one would give all workers to the first. Only the keys of
	// those that have work are sorted.
	workSQL = `
with waiting as (
    select o.project_id, o.connection_id as id from orders o
    where o.status = 'running' and o.connection_id is not null and ` + due.Unclaimed("o", "now()") + `
    union
    select a.project_id, a.connection_id from actions a
    where a.status = 'running' and ` + due.Unclaimed("a", "now()") + `
), picked as (
    select c.id as picked_id from connections c join waiting using (project_id, id)
    where c.status <> 'active' or c.suspended_at is null and coalesce(c.not_before, '-infinity') <= now()
    order by random() limit $1
)
select ` + delegationColumns + ` from connections c join picked on c.id = picked_id`
)

// Ending lists connections that have expired, and ended ones whose trust has to be revoked.
func (d Delegations) Ending(ctx context.Context, limit int) ([]domain.Connection, error) {
	return queryAll[domain.Connection](ctx, d.DB.pool, endingSQL, limit)
}

// Work lists connections with orders or actions that wait, whatever their status.
func (d Delegations) Work(ctx context.Context, limit int) ([]domain.Connection, error) {
	return queryAll[domain.Connection](ctx, d.DB.pool, workSQL, limit)
}

// Current reads a connection as it is now, with its secret.
func (d Delegations) Current(ctx context.Context, projectID string, id uuid.UUID) (domain.Connection, error) {
	return queryOne[domain.Connection](ctx, d.DB.pool,
		"select "+delegationColumns+" from connections where project_id = $1 and id = $2", projectID, id)
}

// Status is how a connection is now, and why.
func (d Delegations) Status(
	ctx context.Context, projectID string, id uuid.UUID,
) (status domain.ConnectionStatus, reason string, err error) {
	c, err := queryOne[domain.Connection](ctx, d.DB.pool,
		"select "+shownStatus+" as status, reason from connections where project_id = $1 and id = $2", projectID, id)
	return c.Status, c.Reason, err
}

// MarkReachable records that the connection's cloud answers, and what flavors it has (nil = not read).
func (d Delegations) MarkReachable(ctx context.Context, projectID string, id uuid.UUID, flavors []domain.Flavor) error {
	_, err := exec(ctx, d.DB.pool, `
update connections set failures = 0, silent_since = null, not_before = null, flavors = coalesce($3, flavors)
where project_id = $1 and id = $2
  and (failures > 0 or silent_since is not null or not_before is not null or $3::jsonb is not null)`,
		projectID, id, orNullJSON(flavors))
	return err
}

func orNullJSON(flavors []domain.Flavor) any {
	if flavors == nil {
		return nil
	}
	return flavors
}

// MarkUnreachable records that the connection's cloud gave no answer, and pauses the connection: for first, then twice
// as long each time, up to longest. Failures at the same time count once.
func (d Delegations) MarkUnreachable(
	ctx context.Context, projectID string, id uuid.UUID, first, longest time.Duration,
) error {
	_, err := exec(ctx, d.DB.pool, `
update connections
set failures = failures + 1, silent_since = coalesce(silent_since, clock_timestamp()),
    not_before = clock_timestamp() + least($3::interval * power(2, least(failures, 20)), $4::interval)
where project_id = $1 and id = $2
    and coalesce(not_before, '-infinity') <= clock_timestamp()`, projectID, id, first, longest)
	return err
}

var openOrdersSQL = `
select id from orders o
where project_id = $1 and connection_id = $2 and status = 'running' and ` + unclaimed("o") + `
order by updated_at limit $3`

// Orders lists the connection's running orders that no one has claimed. Those that waited longest come first, so that
// an order that cannot end holds up no other.
func (d Delegations) Orders(
	ctx context.Context, projectID string, connection uuid.UUID, limit int,
) ([]uuid.UUID, error) {
	return queryColumn[uuid.UUID](ctx, d.DB.pool, openOrdersSQL, projectID, connection, limit)
}

var postponeOrderSQL = `
update orders set claim_id = null, claimed_until = clock_timestamp() + $3::interval
where project_id = $1 and id = $2 and status = 'running' and ` + unclaimed("orders")

// Postpone pauses an order that no one has claimed.
func (d Delegations) Postpone(ctx context.Context, projectID string, order uuid.UUID, pause time.Duration) error {
	_, err := exec(ctx, d.DB.pool, postponeOrderSQL, projectID, order, pause)
	return err
}

// What waits for a cloud that gave no answer does not count before the pause is about to end, nor does an instance that
// has been moving for long.
var busySQL = `
select exists (select from orders o join connections c on c.id = o.connection_id
               where o.status = 'running' and ` + isAwake + `)
    or exists (select from actions a join connections c on c.id = a.connection_id
               where a.status = 'running' and ` + isAwake + `)
    or exists (select from instances i join connections c on c.id = i.connection_id
               where i.remote and i.server_id is not null and ` + movingSince("$1") + `
                 and (c.status <> 'active' or coalesce(c.not_before, '-infinity') <= now() + $2::interval))
    or exists (select from connections where status <> 'active' and not revoked and kind = 'trust'
               and coalesce(not_before, '-infinity') <= now() + $2::interval)
    or exists (select from trusts_to_revoke t where ` + oldTrustDueAt("now() + $2::interval") + `)
    or exists (select from connections where status = 'active' and next_check_at <= now()
               and coalesce(check_until, '-infinity') <= now() + interval '2 seconds')`

// isAwake is the condition that what is ordered through the connection c can continue before $2 has passed.
const isAwake = `(c.status <> 'active'
    or c.suspended_at is null and coalesce(c.not_before, '-infinity') <= now() + $2::interval)`

// Busy reports whether any replica has work in progress through any connection, or will have before left has passed, so
// that it pays to poll again soon: orders and actions; instances in other clouds that Nova is changing, if they changed
// within the time given; trusts that have to be revoked before they expire; and checks that are due.
func (d Delegations) Busy(ctx context.Context, within, left time.Duration) (bool, error) {
	return queryValue[bool](ctx, d.DB.pool, busySQL, within, left)
}

const (
	retireDelegatedSQL = `
with old as (
    delete from actions where status <> 'running' and updated_at < now() - $1::interval
), old_keyed as (
    delete from keyed_actions where created_at < now() - $1::interval
)
delete from deployments where created_at < now() - $1::interval
  and exists (select from deployments later where later.project_id = deployments.project_id
              and later.instance_id = deployments.instance_id and later.created_at > deployments.created_at)`

	// A connection whose trust Keystone may still have stays, however old it is.
	retireConnectionsSQL = `
delete from connections c
where status <> 'active' and revoked and updated_at < now() - $1::interval
  and not exists (select from trusts_to_revoke t where t.connection_id = c.id)
  and not exists (select from actions a where a.connection_id = c.id)
  and not exists (select from instances i where i.connection_id = c.id and i.state <> 'deleted')`

	// Bundles that no one may fetch any more.
	wipeBundlesSQL = `
update deployments d set bundle = null
where d.bundle is not null and not exists (select from instances i where ` + permittedSQL + `)`
)

// Retire deletes actions that ended longer ago than age, replaced deployments, and bundles that no one may fetch. It
// deletes connections that ended longer ago than connectionAge, once nothing runs through them and Keystone has none of
// their trusts.
func (d Delegations) Retire(ctx context.Context, age, connectionAge time.Duration) error {
	if _, err := exec(ctx, d.DB.pool, wipeBundlesSQL); err != nil {
		return err
	}
	if _, err := exec(ctx, d.DB.pool, retireDelegatedSQL, age); err != nil {
		return err
	}
	_, err := exec(ctx, d.DB.pool, retireConnectionsSQL, connectionAge)
	return err
}

// remoteDue selects the connections (c) to other clouds whose servers are due to be read: $1, $2 and $3 are a
// domain.RemoteIntervals. A cloud that gave no answer waits until not_before.
var remoteDue = `c.status = 'active' and (c.auth_url <> '' or c.region <> '')
  and coalesce(c.not_before, '-infinity') <= now() and ` + due.Unclaimed("c", "now()") + `
  and coalesce(c.read_at, '-infinity') <= now() - least($1::interval, $2::interval)
  and (c.project_id, c.id) in (
    select u.project_id, u.id from connections u
    where u.status = 'active' and (u.auth_url <> '' or u.region <> '')
      and coalesce(u.read_at, '-infinity') <= now() - $1::interval
      and exists (select from instances i where i.connection_id = u.id and i.state <> 'deleted'
                  and i.project_id = u.project_id and i.remote and i.server_id is not null)
    union all
    select i.project_id, i.connection_id from instances i
    where i.remote and i.server_id is not null and ` + movingSince("$3") + `)`

var (
	remoteCloudsSQL = `
select c.auth_url, c.region from connections c where ` + remoteDue + ` group by c.auth_url, c.region`

	// Several replicas that claim concurrently take different connections.
	claimReadSQL = `
with due as (
    select c.id from connections c where c.auth_url = $4 and c.region = $5 and ` + remoteDue + `
    order by coalesce(c.read_at, '-infinity'), c.id limit 1
    for update skip locked
)
update connections
set read_at = clock_timestamp(), read_claim = $6, claimed_until = clock_timestamp() + $7::interval
where id = (select id from due)
returning ` + delegationColumns + `, read_claim as claim_id, read_at as at, read_since as since, swept_at as scanned_at`

	doneReadSQL = `
update connections
set read_claim = null, claimed_until = null, read_since = $4, swept_at = case when $5 then $4 else swept_at end,
    failures = 0, silent_since = null, not_before = null
where project_id = $1 and id = $2 and read_claim = $3`
)

// RemoteClouds lists the clouds that have connections whose servers are due to be read.
func (d Delegations) RemoteClouds(ctx context.Context, intervals domain.RemoteIntervals) ([]domain.RemoteCloud, error) {
	return queryAll[domain.RemoteCloud](ctx, d.DB.pool, remoteCloudsSQL, intervalArgs(intervals)...)
}

func intervalArgs(intervals domain.RemoteIntervals) []any {
	return []any{intervals.Usual, intervals.Moving, intervals.Within}
}

// ClaimRead claims the connection to the cloud whose servers are due to be read and were read the longest ago. found is
// false when none is due.
func (d Delegations) ClaimRead(
	ctx context.Context, cloud domain.RemoteCloud, intervals domain.RemoteIntervals, claimFor time.Duration,
) (read domain.RemoteRead, found bool, err error) {
	type claimed struct {
		domain.Connection

		ClaimID              uuid.UUID
		At, Since, ScannedAt time.Time
	}
	args := append(intervalArgs(intervals), cloud.AuthURL, cloud.Region, uuid.New(), claimFor)
	c, found, err := queryFound[claimed](ctx, d.DB.pool, claimReadSQL, args...)
	return domain.RemoteRead{
		Connection: c.Connection, Claim: domain.Claim{ID: c.ClaimID}, At: c.At, Since: c.Since, ScannedAt: c.ScannedAt,
	}, found, err
}

// DoneRead ends a claimed read that has succeeded; isScan reports whether it has read all servers. It does nothing when
// another replica has claimed the connection since.
func (d Delegations) DoneRead(ctx context.Context, read domain.RemoteRead, isScan bool) error {
	c := read.Connection
	_, err := exec(ctx, d.DB.pool, doneReadSQL, c.ProjectID, c.ID, read.Claim.ID, read.At, isScan)
	return err
}

// ReleaseRead ends a claimed read that has failed; the connection is due again after the usual time.
func (d Delegations) ReleaseRead(ctx context.Context, read domain.RemoteRead) error {
	_, err := exec(ctx, d.DB.pool, `update connections set read_claim = null, claimed_until = null
where project_id = $1 and id = $2 and read_claim = $3`, read.Connection.ProjectID, read.Connection.ID, read.Claim.ID)
	return err
}

// Instances lists the connection's instances in another cloud that have a server and are not deleted.
func (d Delegations) Instances(ctx context.Context, projectID string, connection uuid.UUID) ([]domain.Instance, error) {
	return queryAll[domain.Instance](ctx, d.DB.pool, "select "+instanceColumns+` from instances
where project_id = $1 and connection_id = $2 and remote and state <> 'deleted' and server_id is not null order by id`,
		projectID, connection)
}

const staleSQL = `
select ` + instanceColumns + ` from instances
where remote and connection_id is not null and state not in ('deleted', 'unknown') and server_id is not null
  and exists (select from connections c where c.id = connection_id
              and (c.status <> 'active' or c.silent_since < now() - $1::interval
                  and coalesce(seen_at, created_at) < now() - $1::interval))
order by id limit $2`

// ListStale lists instances in other clouds whose state cannot be read: their connection has ended, or its cloud has
// given no answer for longer than after. Instances whose state is unknown already are left out.
func (d Delegations) ListStale(ctx context.Context, after time.Duration, limit int) ([]domain.Instance, error) {
	return queryAll[domain.Instance](ctx, d.DB.pool, staleSQL, after, limit)
}
