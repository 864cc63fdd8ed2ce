package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// $1 and $2 are the projects and ids of leases.
const (
	reservationsSQL = `
select r.id, r.project_id, r.lease_id, r.type, r.status, r.problem, r.instance_id, r.action_id, r.want, r.flavors,
       coalesce(r.aggregate_id, 0) as aggregate_id, r.prepared_at
from unnest($1::text[], $2::uuid[]) l (project_id, id) join reservations r
  on r.project_id = l.project_id and r.lease_id = l.id
order by r.lease_id, r.position`

	allocationsSQL = `
select ` + allocationColumns + `
from unnest($1::text[], $2::uuid[]) l (project_id, id) join reservations r
  on r.project_id = l.project_id and r.lease_id = l.id
join allocations a on a.project_id = r.project_id and a.reservation_id = r.id
order by lower(a.during), a.node`

	allocationColumns = `
a.project_id, r.lease_id, a.reservation_id, a.node, lower(a.during) as "from", upper(a.during) as until,
a.prepared_at, a.released_at`
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

const (
	leasableSQL = `
select remote from instances where project_id = $1 and id = $2 and state not in ('deleting', 'deleted')`

	insertReservationSQL = `
insert into reservations (project_id, id, lease_id, position, type, instance_id, want, flavors, status)
values ($1, $2, $3, $4, $5, $6, $7, $8, case when $9 then 'active' else 'pending' end) on conflict do nothing`

	leaseOfInstanceSQL = `
select lease_id from reservations where project_id = $1 and instance_id = $2 and is_open`

	leaseInstanceSQL = `update instances set lease_id = $3 where project_id = $1 and id = $2`
)

// insertReservation stores the nth reservation of a lease, without hosts.
func insertReservation(ctx context.Context, tx pgx.Tx, lease domain.Lease, n int) error {
	r := lease.Reservations[n]
	if r.Type == domain.InstanceReservation {
		if err := checkLeasable(ctx, tx, lease.ProjectID, n, r.InstanceID); err != nil {
			return err
		}
	}
	stored, err := exec(ctx, tx, insertReservationSQL, lease.ProjectID, r.ID, lease.ID, n, r.Type,
		orNullID(r.InstanceID), r.Want, orEmpty(r.Flavors), lease.Status == domain.LeaseActive)
	switch {
	case err != nil:
		return err
	case stored == 0:
		return leasedAlready(ctx, tx, lease.ProjectID, n, r)
	case r.Type == domain.HostReservation:
		return nil
	}
	_, err = exec(ctx, tx, leaseInstanceSQL, lease.ProjectID, r.InstanceID, lease.ID)
	return err
}

// checkLeasable rejects an instance that the project does not have, and one in another cloud.
func checkLeasable(ctx context.Context, tx pgx.Tx, projectID string, n int, instance uuid.UUID) error {
	field := fmt.Sprintf("reservations[%d].instance_id", n)
	isRemote, err := queryValue[bool](ctx, tx, leasableSQL, projectID, instance)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		return apperr.Unknown(field, "instance", instance.String())
	case err == nil && isRemote:
		return apperr.InvalidField(field, "is in another cloud: only instances of this cloud can be leased")
	}
	return err
}

// leasedAlready says why a reservation could not be stored: its instance has another, or its id is taken.
func leasedAlready(ctx context.Context, tx pgx.Tx, projectID string, n int, r domain.Reservation) error {
	lease, err := queryValue[uuid.UUID](ctx, tx, leaseOfInstanceSQL, projectID, r.InstanceID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		return errTaken(fmt.Sprintf("reservations[%d].id", n), nil)
	case err != nil:
		return err
	}
	leased := apperr.InvalidField(fmt.Sprintf("reservations[%d].instance_id", n),
		fmt.Sprintf("instance %s is in lease %s already: change or delete that one", r.InstanceID, lease))
	leased.Code = apperr.Conflict
	return leased
}
