package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// endAllocationsSQL returns the hosts of a lease: what is over stays for the record, what has not begun is deleted. The
// time for cleaning begins now.
const endAllocationsSQL = `
with mine as (
    select a.reservation_id, a.node, lower(a.during) as low, a.prepared_at,
           least(upper(a.during), clock_timestamp() + (upper(a.during) - l.ends_at)) as high
    from allocations a join reservations r on r.project_id = a.project_id and r.id = a.reservation_id
    join leases l on l.project_id = r.project_id and l.id = r.lease_id
    where l.project_id = $1 and l.id = $2 and a.released_at is null
), gone as (
    delete from allocations a using mine m
    where a.project_id = $1 and a.reservation_id = m.reservation_id and a.node = m.node
      and m.prepared_at is null and m.high <= m.low
)
update allocations a
set during = tstzrange(m.low, greatest(m.high, m.low + interval '1 microsecond')), released_at = clock_timestamp()
from mine m
where a.project_id = $1 and a.reservation_id = m.reservation_id and a.node = m.node
  and not (m.prepared_at is null and m.high <= m.low)`

// freeAllocationsSQL frees the hosts of a lease that ends and that it has not begun to prepare. A pass that is about to
// prepare one finds it is the lease's no more.
const freeAllocationsSQL = `
delete from allocations a using reservations r
where r.project_id = $1 and r.lease_id = $2 and a.project_id = r.project_id and a.reservation_id = r.id
  and a.prepared_at is null and a.released_at is null`

// cancelAllocationsSQL deletes the hosts of a lease that was never started.
const cancelAllocationsSQL = `
delete from allocations a using reservations r
where r.project_id = $1 and r.lease_id = $2 and a.project_id = r.project_id and a.reservation_id = r.id`

// endAllocations returns all hosts of a lease.
func endAllocations(ctx context.Context, tx pgx.Tx, projectID string, lease uuid.UUID) error {
	_, err := exec(ctx, tx, endAllocationsSQL, projectID, lease)
	return err
}
