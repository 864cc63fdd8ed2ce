package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// $1 and $2 are the projects and ids of leases.
const (
	reservationsSQL = `
select r.id, r.project_id, r.lease_id, r.type, r.status, r.problem, r.instance_id, r.action_id, r.want, r.flavors,
       r.was_running, coalesce(r.aggregate_id, 0) as aggregate_id, r.trait, r.prepared_at, r.servers, ` + waitsFor + ` as waits_for
from unnest($1::text[], $2::uuid[]) l (project_id, id) join reservations r
  on r.project_id = l.project_id and r.lease_id = l.id
order by r.lease_id, r.position`

	allocationsSQL = `
select ` + allocationColumns + `
from unnest($1::text[], $2::uuid[]) l (project_id, id) join reservations r
  on r.project_id = l.project_id and r.lease_id = l.id
join allocations a on a.project_id = r.project_id and a.reservation_id = r.id
order by lower(a.during), a.node`

	// The lease before in which the instance is. One whose end has failed keeps no other.
	waitsFor = `(
    select o.lease_id from reservations o join leases e on e.project_id = o.project_id and e.id = o.lease_id
    where o.project_id = r.project_id and o.instance_id = r.instance_id and o.is_open and r.is_open
      and lower(o.during) < lower(r.during) and e.end_result <> 'failed'
    order by lower(o.during) desc limit 1)`

	allocationColumns = `
a.project_id, r.lease_id, a.reservation_id, a.node, lower(a.during) as "from", upper(a.during) as until,
a.prepared_at, a.replaced_at, a.released_at`
)

// reservationsOf selects the reservations of a lease, with their hosts.
func reservationsOf(l domain.Lease, all []domain.Reservation, hosts []domain.Allocation) (own []domain.Reservation) {
	for _, r := range all {
		if r.ProjectID != l.ProjectID || r.LeaseID != l.ID {
			continue
		}
		for _, a := range hosts {
			if a.ProjectID == r.ProjectID && a.ReservationID == r.ID {
				r.Allocations = append(r.Allocations, a)
			}
		}
		own = append(own, r)
	}
	return own
}

const insertReservationSQL = `
insert into reservations (project_id, id, lease_id, position, type, instance_id, want, flavors, status, during)
values ($1, $2, $3, $4, $5, $6, $7, $8, case when $9 then 'active' else 'pending' end,
        case when $6::uuid is not null then tstzrange($10, $11) end)
on conflict do nothing`

// insertReservation stores the nth reservation of a lease, without hosts. One of a server connects it.
func insertReservation(ctx context.Context, tx pgx.Tx, lease domain.Lease, n int) error {
	r := &lease.Reservations[n]
	if r.Type == domain.InstanceReservation {
		if err := chooseInstance(ctx, tx, lease, n); err != nil {
			return err
		}
	}
	stored, err := exec(ctx, tx, insertReservationSQL, lease.ProjectID, r.ID, lease.ID, n, r.Type,
		orNullID(r.InstanceID), r.Want, orEmpty(r.Flavors), lease.Status == domain.LeaseActive, lease.StartsAt,
		lease.EndsAt)
	switch {
	case err != nil:
		return err
	case stored == 0:
		err = leasedThen(ctx, tx, lease, n)
		if err == nil {
			err = errTaken(fmt.Sprintf("reservations[%d].id", n), nil)
		}
		return err
	case r.Type == domain.HostReservation:
		return nil
	}
	return setLeases(ctx, tx, lease.ProjectID, r.InstanceID)
}
