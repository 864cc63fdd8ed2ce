package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// remoteDue selects the connections (c) to other clouds whose servers are due to be read: $1, $2 and $3 are a
// domain.RemotePace. A cloud that gave no answer waits until not_before.
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

	// Several replicas that claim at once take different connections.
	claimReadSQL = `
with due as (
    select c.id from connections c where c.auth_url = $4 and c.region = $5 and ` + remoteDue + `
    order by coalesce(c.read_at, '-infinity'), c.id limit 1
    for update skip locked
)
update connections
set read_at = clock_timestamp(), read_claim = $6, claimed_until = clock_timestamp() + $7::interval
where id = (select id from due)
returning ` + delegationColumns + `, read_claim as claim_id, read_at as at, read_since as since, swept_at`

	doneReadSQL = `
update connections
set read_claim = null, claimed_until = null, read_since = $4, swept_at = case when $5 then $4 else swept_at end,
    failures = 0, silent_since = null, not_before = null
where project_id = $1 and id = $2 and read_claim = $3`
)

// RemoteClouds lists the clouds that have connections whose servers are due to be read.
func (d Delegations) RemoteClouds(ctx context.Context, pace domain.RemotePace) ([]domain.RemoteCloud, error) {
	return queryAll[domain.RemoteCloud](ctx, d.DB.pool, remoteCloudsSQL, paceArgs(pace)...)
}

func paceArgs(pace domain.RemotePace) []any {
	return []any{pace.Usual, pace.Moving, pace.Within}
}

// ClaimRead claims the connection to the cloud whose servers are due to be read and were read the longest ago. found is
// false when none is due.
func (d Delegations) ClaimRead(
	ctx context.Context, cloud domain.RemoteCloud, pace domain.RemotePace, claimFor time.Duration,
) (read domain.RemoteRead, found bool, err error) {
	type claimed struct {
		domain.Connection

		ClaimID            uuid.UUID
		At, Since, SweptAt time.Time
	}
	args := append(paceArgs(pace), cloud.AuthURL, cloud.Region, uuid.New(), claimFor)
	c, found, err := queryFound[claimed](ctx, d.DB.pool, claimReadSQL, args...)
	return domain.RemoteRead{
		Connection: c.Connection, Claim: domain.Claim{ID: c.ClaimID}, At: c.At, Since: c.Since, SweptAt: c.SweptAt,
	}, found, err
}

// DoneRead ends a claimed read that has succeeded; swept says that it has read all servers. It does nothing when
// another replica has claimed the connection since.
func (d Delegations) DoneRead(ctx context.Context, read domain.RemoteRead, swept bool) error {
	c := read.Connection
	_, err := exec(ctx, d.DB.pool, doneReadSQL, c.ProjectID, c.ID, read.Claim.ID, read.At, swept)
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
