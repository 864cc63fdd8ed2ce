package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Leases are the leases of projects with their reservations, and what run-leases does with them. One replica at a time
// works on a lease (claim.go).
type Leases struct{ DB *DB }

const (
	leaseColumns = `
id, project_id, domain_id, user_id, name, status, problem, degraded, starts_at, ends_at, before_end, on_end,
enforce, connection_id, shares_connection, order_id, actor, start_result, started_at, ending_since,
end_result, ended_at, warned_at,
seq, version, due_at, attempts, created_at, updated_at`

	// leaseEventSQL writes the event of a lease's new status, from rows "after" of leases with previous_status.
	leaseEventSQL = `
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, id::text, seq, '` + domain.LeaseEvent + `', updated_at, ` + leaseEventData + `
    from`

	leaseEventData = `jsonb_strip_nulls(jsonb_build_object(
               'lease_id', id, 'name', name, 'status', status, 'previous_status', previous_status, 'reason', problem,
               'degraded', degraded, 'start', ` + startText + `, 'end', ` + endText + `,
               'instance_ids', ` + leasedInstances + `, 'servers', ` + changedServers + `, 'actor', actor))`

	// leasedInstances are the instances of a lease in the row "after"; null = none.
	leasedInstances = `(
    select jsonb_agg(r.instance_id order by r.position) from reservations r
    where r.project_id = after.project_id and r.lease_id = after.id and r.instance_id is not null)`

	// changedServers are the servers that the end of a lease in the row "after" did more to than on_end; null = none.
	changedServers = `(
    select jsonb_agg(jsonb_build_object('server_id', s->'id', 'name', s->'name', 'detail', s->'did'))
    from reservations r, jsonb_array_elements(r.servers) s
    where r.project_id = after.project_id and r.lease_id = after.id and s ? 'did')`

	startText = `to_char(starts_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
	endText   = `to_char(ends_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
)

// Now is the database's clock.
func (s Leases) Now(ctx context.Context) (time.Time, error) { return s.DB.Now(ctx) }

// Get reads a lease of the project with its reservations and their hosts.
func (s Leases) Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Lease, error) {
	found, err := queryOne[domain.Lease](ctx, s.DB.pool,
		"select "+leaseColumns+" from leases where project_id = $1 and id = $2", projectID, id)
	if err != nil {
		return found, orNotFound(err, "unknown lease %s", id)
	}
	return withParts(ctx, s.DB.pool, found)
}

// Ids are version 7: the order of time.
const listLeasesSQL = `
select ` + leaseColumns + ` from leases l
where project_id = $1 and (cardinality($2::text[]) = 0 or status = any($2::text[]))
  and ($3 = '' or position(lower($3) in lower(name)) > 0)
  and ($4 = '' or exists (select from reservations r
                          where r.project_id = l.project_id and r.lease_id = l.id and r.type = $4))
  and ($7::uuid is null or exists (select from reservations r where r.project_id = l.project_id
                                   and r.lease_id = l.id and r.instance_id = $7))
  and id < $5 order by id desc limit $6`

// List reads a page of the project's leases with their reservations, the newest first.
func (s Leases) List(ctx context.Context, projectID string, q domain.LeaseQuery) ([]domain.Lease, error) {
	if q.Marker == uuid.Nil {
		q.Marker = uuid.Max
	}
	found, err := queryAll[domain.Lease](ctx, s.DB.pool, listLeasesSQL, projectID, orEmpty(q.Statuses), q.Name, q.Type,
		q.Marker, q.Limit, orNullID(q.Instance))
	if err != nil {
		return nil, err
	}
	return found, addParts(ctx, s.DB.pool, found)
}

// withParts is a lease with its reservations and their hosts.
func withParts(ctx context.Context, db querier, lease domain.Lease) (domain.Lease, error) {
	one := []domain.Lease{lease}
	err := addParts(ctx, db, one)
	return one[0], err
}

// addParts reads the reservations of leases and their hosts.
func addParts(ctx context.Context, db querier, leases []domain.Lease) error {
	if len(leases) == 0 {
		return nil
	}
	projects, ids := make([]string, len(leases)), make([]uuid.UUID, len(leases))
	for n, l := range leases {
		projects[n], ids[n] = l.ProjectID, l.ID
	}
	reservations, err := queryAll[domain.Reservation](ctx, db, reservationsSQL, projects, ids)
	if err != nil {
		return err
	}
	allocations, err := queryAll[domain.Allocation](ctx, db, allocationsSQL, projects, ids)
	if err != nil {
		return err
	}
	for n := range leases {
		leases[n].Reservations = reservationsOf(leases[n], reservations, allocations)
	}
	return nil
}

// lockLease locks a lease until the transaction ends, and reads it.
func lockLease(ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID) (domain.Lease, error) {
	found, err := queryOne[domain.Lease](ctx, tx, "select "+leaseColumns+
		" from leases where project_id = $1 and id = $2 for no key update", projectID, id)
	if err != nil {
		return found, orNotFound(err, "unknown lease %s", id)
	}
	return withParts(ctx, tx, found)
}
