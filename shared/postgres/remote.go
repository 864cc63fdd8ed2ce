package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// remoteDue selects the connections (c) to other clouds whose servers are due to be read: $1, $2 and $3 are a domain.RemotePace, $4 the
// states in which Nova is at work on a server. A cloud that gave no answer is left alone for a while.
const remoteDue = `c.status = 'active' and (c.auth_url <> '' or c.region <> '') and coalesce(c.not_before, '-infinity') <= clock_timestamp()
  and coalesce(c.claimed_until, '-infinity') <= clock_timestamp()
  and (coalesce(c.read_at, '-infinity') <= clock_timestamp() - $1::interval
         and exists (select from instances i where i.connection_id = c.id and i.state <> 'deleted' and i.project_id = c.project_id
                     and i.remote and i.server_id is not null)
    or coalesce(c.read_at, '-infinity') <= clock_timestamp() - $2::interval
         and exists (select from instances i where i.connection_id = c.id and i.state <> 'deleted' and i.project_id = c.project_id
                     and i.remote and i.server_id is not null and i.state = any($4) and i.updated_at > clock_timestamp() - $3::interval))`

const (
	remoteCloudsSQL = `select c.auth_url, c.region from connections c where ` + remoteDue + ` group by c.auth_url, c.region`

	// Several replicas that claim at once take different connections.
	claimReadSQL = `
with due as (
    select c.id from connections c where c.auth_url = $5 and c.region = $6 and ` + remoteDue + `
    order by c.read_at nulls first, c.id limit 1
    for update skip locked
)
update connections
set read_at = clock_timestamp(), read_claim = $7, claimed_until = clock_timestamp() + $8::interval
where id = (select id from due)
returning ` + delegationColumns + `, read_at, coalesce(read_since, '0001-01-01'), coalesce(swept_at, '0001-01-01')`

	doneReadSQL = `
update connections
set read_claim = null, claimed_until = null, read_since = $4, swept_at = case when $5 then $4 else swept_at end,
    failures = 0, silent_since = null, not_before = null
where project_id = $1 and id = $2 and read_claim = $3`
)

// RemoteClouds lists the clouds that have connections whose servers are due to be read.
func (d Delegations) RemoteClouds(ctx context.Context, pace domain.RemotePace) ([]domain.RemoteCloud, error) {
	rows, _ := d.DB.pool.Query(ctx, remoteCloudsSQL, paceArgs(pace)...)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.RemoteCloud])
	return found, classify(err)
}

func paceArgs(pace domain.RemotePace) []any {
	return []any{pace.Usual, pace.Moving, pace.Within, domain.MovingStates()}
}

// ClaimRead claims the read of that connection to the cloud which is due and was not read for the longest. found is false when none is due.
func (d Delegations) ClaimRead(ctx context.Context, cloud domain.RemoteCloud, pace domain.RemotePace, claimFor time.Duration) (read domain.RemoteRead, found bool, err error) {
	read.Claim = uuid.New()
	rows, _ := d.DB.pool.Query(ctx, claimReadSQL, append(paceArgs(pace), cloud.AuthURL, cloud.Region, read.Claim, claimFor)...)
	read, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (domain.RemoteRead, error) {
		var secret []byte
		c, err := scanConnection(withMore{row, []any{&secret, &read.At, &read.Since, &read.SweptAt}})
		read.Connection, read.Connection.Secret = c, secret
		return read, err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return read, false, nil
	}
	return read, err == nil, classify(err)
}

// DoneRead ends a claimed read that has succeeded; swept says that it was one of all servers. It does nothing when another replica has
// claimed the connection since.
func (d Delegations) DoneRead(ctx context.Context, read domain.RemoteRead, swept bool) error {
	c := read.Connection
	_, err := d.DB.pool.Exec(ctx, doneReadSQL, c.ProjectID, c.ID, read.Claim, read.At, swept)
	return classify(err)
}

// ReleaseRead ends a claimed read that has failed, so that it is due again after the usual time.
func (d Delegations) ReleaseRead(ctx context.Context, read domain.RemoteRead) error {
	_, err := d.DB.pool.Exec(ctx, `update connections set read_claim = null, claimed_until = null
where project_id = $1 and id = $2 and read_claim = $3`, read.Connection.ProjectID, read.Connection.ID, read.Claim)
	return classify(err)
}

// Instances lists the connection's instances in another cloud, which are not deleted and have a server.
func (d Delegations) Instances(ctx context.Context, projectID string, connection uuid.UUID) ([]domain.Instance, error) {
	rows, _ := d.DB.pool.Query(ctx, "select "+instanceColumns+` from instances
where project_id = $1 and connection_id = $2 and remote and state <> 'deleted' and server_id is not null order by id`, projectID, connection)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Instance])
	return found, classify(err)
}

const staleSQL = `
select ` + instanceColumns + ` from instances
where remote and connection_id is not null and state not in ('deleted', 'unknown') and server_id is not null
  and exists (select from connections c where c.id = connection_id and (c.status <> 'active' or c.silent_since < clock_timestamp() - $1::interval))
order by id limit $2`

// ListStale lists instances in other clouds about which nothing new can be known: their connection has ended, or its cloud has given it
// no answer for longer than after. Those that are unknown already are left out.
func (d Delegations) ListStale(ctx context.Context, after time.Duration, limit int) ([]domain.Instance, error) {
	rows, _ := d.DB.pool.Query(ctx, staleSQL, after, limit)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Instance])
	return found, classify(err)
}
