package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// $1 and $2 are the projects and ids of leases.
const (
	reservationsSQL = `
select r.id, r.project_id, r.lease_id, r.type, r.status, r.problem, r.instance_id, r.action_id, r.want as request,
       r.flavors, r.was_running, coalesce(r.aggregate_id, 0) as aggregate_id, r.trait, r.prepared_at, r.servers,
       r.actions_done, r.volume, ` + waitsFor + ` as waits_for
from unnest($1::text[], $2::uuid[]) l (project_id, id) join reservations r
  on r.project_id = l.project_id and r.lease_id = l.id
order by r.lease_id, r.position`

	allocationsSQL = `
select ` + allocationColumns + `
from unnest($1::text[], $2::uuid[]) l (project_id, id) join reservations r
  on r.project_id = l.project_id and r.lease_id = l.id
join allocations a on a.project_id = r.project_id and a.reservation_id = r.id
order by lower(a.during), a.node`

	// The lease before in which the instance or the volume is. One whose end has failed keeps no instance, but its
	// volume, which it may still detach and delete.
	waitsFor = `(
    select o.lease_id from reservations o join leases e on e.project_id = o.project_id and e.id = o.lease_id
    where o.project_id = r.project_id and o.is_open and r.is_open and lower(o.during) < lower(r.during)
      and (o.instance_id = r.instance_id and e.end_result <> 'failed' or o.volume_id = r.volume_id)
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
insert into reservations (project_id, id, lease_id, position, type, instance_id, want, flavors, status, during, volume,
                          volume_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, case when $9 then 'active' else 'pending' end,
        case when $5 <> 'host' then tstzrange($10, $11) end, $12, $12::jsonb->>'id')
on conflict do nothing`

// insertReservation stores the nth reservation of a lease, without hosts. One of a server connects it.
func insertReservation(ctx context.Context, tx pgx.Tx, lease domain.Lease, n int) error {
	r := &lease.Reservations[n]
	if r.Type == domain.InstanceReservation {
		if err := chooseInstance(ctx, tx, lease, n); err != nil {
			return err
		}
	}
	if r.Type == domain.VolumeReservation {
		if err := checkVolume(ctx, tx, lease, n); err != nil {
			return err
		}
	}
	stored, err := exec(ctx, tx, insertReservationSQL, lease.ProjectID, r.ID, lease.ID, n, r.Type,
		orNullID(r.InstanceID), r.Request, orEmpty(r.Flavors), lease.Status == domain.LeaseActive, lease.StartsAt,
		lease.EndsAt, r.Volume)
	switch {
	case err != nil:
		return err
	case stored == 0:
		err = leasedThen(ctx, tx, lease, n)
		if err == nil {
			err = errTaken(fmt.Sprintf("reservations[%d].id", n), nil)
		}
		return err
	case r.Type != domain.InstanceReservation:
		return nil
	}
	return setLeases(ctx, tx, lease.ProjectID, r.InstanceID)
}

const (
	leasableSQL = `
select remote, connection_id from instances where project_id = $1 and id = $2 and state not in ('deleting', 'deleted')`

	// An instance shows the lease that it is in, or the next one.
	setLeasesSQL = `
update instances i set lease_id = (
    select r.lease_id from reservations r
    where r.project_id = i.project_id and r.instance_id = i.id and r.is_open order by lower(r.during) limit 1)
where project_id = $1 and id = any($2)`

	// Leases that wait for the instances' lease are due. What run-leases does for one meanwhile has not observed that.
	wakeNextSQL = `
update leases l set due_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
from reservations r
where r.project_id = $1 and r.instance_id = any($2) and r.is_open and l.project_id = r.project_id
  and l.id = r.lease_id and l.status in ('pending', 'starting')`

	moveReservationsSQL = `
update reservations set during = tstzrange($3, $4)
where project_id = $1 and lease_id = $2 and type <> 'host' and is_open`
)

// leasedThenSQL selects the first lease of what a column ($2) names within a period, and the first time at which a
// lease of the length fits.
func leasedThenSQL(column string) string {
	return strings.ReplaceAll(`
select r.lease_id, lower(r.during) as "from", (
    select min(upper(a.during)) from reservations a
    where a.project_id = $1 and a.NAMED = $2 and a.is_open and a.lease_id <> $3 and upper(a.during) > $4
      and not exists (
          select from reservations b
          where b.project_id = $1 and b.NAMED = $2 and b.is_open and b.lease_id <> $3
            and b.during && tstzrange(upper(a.during), upper(a.during) + ($5::timestamptz - $4::timestamptz)))
) as free_at
from reservations r
where r.project_id = $1 and r.NAMED = $2 and r.is_open and r.lease_id <> $3 and r.during && tstzrange($4, $5)
order by lower(r.during) limit 1`, "NAMED", column)
}

const madeForSQL = `
select lease_id from reservations
where project_id = $1 and volume->>'id' = $2 and volume_id is null and is_open and lease_id <> $3 limit 1`

// checkVolume rejects an existing volume of the nth reservation that was made for another lease, which still has it.
func checkVolume(ctx context.Context, tx pgx.Tx, lease domain.Lease, n int) error {
	id := lease.Reservations[n].Volume.ID
	if id == "" {
		return nil
	}
	other, isMade, err := queryFound[struct{ LeaseID uuid.UUID }](ctx, tx, madeForSQL, lease.ProjectID, id, lease.ID)
	if err != nil || !isMade {
		return err
	}
	refusal := apperr.InvalidField(fmt.Sprintf("reservations[%d].volume_id", n), fmt.Sprintf(
		"volume %s was made for lease %s, which has it until its end", id, other.LeaseID))
	refusal.Code = apperr.Conflict
	return refusal
}

// chooseInstance connects the server of the nth reservation, and rejects an instance that cannot be in the lease.
func chooseInstance(ctx context.Context, tx pgx.Tx, lease domain.Lease, n int) error {
	r, field := &lease.Reservations[n], "instance_id"
	if r.Connect != nil {
		field = "server_id"
		instance, _, err := connect(ctx, tx, *r.Connect)
		if err != nil {
			return err
		}
		r.InstanceID = instance.ID
	}
	field = fmt.Sprintf("reservations[%d].%s", n, field)
	for k, other := range lease.Reservations[:n] {
		if other.InstanceID == r.InstanceID {
			return apperr.InvalidField(field, fmt.Sprintf("is the instance of reservations[%d], too", k))
		}
	}
	type leasable struct {
		Remote       bool
		ConnectionID uuid.UUID
	}
	found, err := queryOne[leasable](ctx, tx, leasableSQL, lease.ProjectID, r.InstanceID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return apperr.Unknown(field, "instance", r.InstanceID.String())
	case err == nil && found.Remote:
		return apperr.InvalidField(field, "is in another cloud: only instances of this cloud can be leased")
	case err == nil && lease.SharesConnection && found.ConnectionID != lease.ConnectionID:
		return apperr.InvalidField(field,
			"is not managed through the connection: connect its server through it, or leave connection_id out")
	}
	return err
}

// leasedThen says which other lease the instance or the volume of the nth reservation is in during the lease, and when
// it is free; nil = in none.
func leasedThen(ctx context.Context, tx pgx.Tx, lease domain.Lease, n int) error {
	type other struct {
		LeaseID uuid.UUID
		From    time.Time
		FreeAt  time.Time
	}
	r := lease.Reservations[n]
	what, id := "instance", r.InstanceID.String()
	if r.Volume != nil {
		what, id = "volume", r.Volume.ID
	}
	found, isLeased, err := queryFound[other](ctx, tx, leasedThenSQL(what+"_id"), lease.ProjectID, id, lease.ID,
		lease.StartsAt, lease.EndsAt)
	if err != nil || !isLeased {
		return err
	}
	if lease.Status == domain.LeaseStarting || lease.Status == domain.LeaseActive { // it can only be extended
		refusal := apperr.InvalidField("end", fmt.Sprintf("%s %s is in lease %s from %s: this one can end then "+
			"at the latest", what, id, found.LeaseID, found.From.UTC().Format(time.RFC3339Nano)))
		refusal.Code = apperr.Conflict
		return &domain.FreeError{Refusal: refusal, EndsBy: found.From}
	}
	refusal := apperr.InvalidField(fmt.Sprintf("reservations[%d].%s_id", n, what), fmt.Sprintf(
		"%s %s is in lease %s then: begin later, or change or delete that lease", what, id, found.LeaseID))
	refusal.Code = apperr.Conflict
	return &domain.FreeError{Refusal: refusal, FreeAt: found.FreeAt}
}

// setLeases stores with instances in which lease they are.
func setLeases(ctx context.Context, tx pgx.Tx, projectID string, instances ...uuid.UUID) error {
	_, err := exec(ctx, tx, setLeasesSQL, projectID, orEmpty(instances))
	return err
}

// moveReservations moves the reservations of a lease's instances and volumes to its new period.
func moveReservations(ctx context.Context, tx pgx.Tx, lease domain.Lease) error {
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := exec(ctx, tx, moveReservationsSQL, lease.ProjectID, lease.ID, lease.StartsAt, lease.EndsAt)
		if sqlState(err) == stateExclusion {
			err = errOverlap
		}
		return err
	})
	if !errors.Is(err, errOverlap) {
		if err == nil {
			err = setLeases(ctx, tx, lease.ProjectID, instancesOf(lease)...)
		}
		return err
	}
	for n, r := range lease.Reservations {
		if r.Type != domain.HostReservation {
			if err := leasedThen(ctx, tx, lease, n); err != nil {
				return err
			}
		}
	}
	return apperr.Wrap(apperr.Conflict, err,
		"others change the leases of its instances or volumes at the same time: repeat it")
}
