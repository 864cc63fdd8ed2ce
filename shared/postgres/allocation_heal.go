package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// claimedReservation is the reservation ($2) of a lease under a claim ($3), which stays locked.
	claimedReservation = `
with claimed as (
    select l.project_id, l.id, l.ends_at from leases l join reservations r
      on r.project_id = l.project_id and r.lease_id = l.id
    where r.project_id = $1 and r.id = $2 and l.claim_id = $3
    for no key update of l
)`

	preparedSQL = claimedReservation + `, written as (
    update allocations a set prepared_at = coalesce(a.prepared_at, clock_timestamp()) from claimed
    where a.project_id = $1 and a.reservation_id = $2 and a.node = any($4) and a.released_at is null
    returning 1
)
select (select count(*)::int from claimed) as claimed, (select count(*)::int from written) as written`

	// The time for cleaning begins now; an allocation that is over already keeps its end.
	releasedSQL = claimedReservation + `, written as (
    update allocations a
    set released_at = coalesce(a.released_at, clock_timestamp()),
        during = case when a.released_at is not null then a.during else tstzrange(lower(a.during), greatest(
            lower(a.during) + interval '1 microsecond',
            least(upper(a.during), clock_timestamp() + greatest(upper(a.during) - c.ends_at, interval '0')))) end
    from claimed c
    where a.project_id = $1 and a.reservation_id = $2 and a.node = any($4)
    returning 1
)
select (select count(*)::int from claimed) as claimed, (select count(*)::int from written) as written`
)

// Prepared records that hosts are a reservation's in Nova and Placement. It is domain.ErrFenced when another replica
// has claimed the lease since, and domain.ErrChanged when one of the hosts is not the reservation's any more.
func (s Leases) Prepared(ctx context.Context, claim domain.Claim, r domain.Reservation, nodes ...string) error {
	return s.markHosts(ctx, preparedSQL, claim, r, nodes)
}

// Released records that hosts of a reservation are not its in Nova and Placement any more. What is left of their time
// is free after the cleaning. Its errors are those of Prepared.
func (s Leases) Released(ctx context.Context, claim domain.Claim, r domain.Reservation, nodes ...string) error {
	return s.markHosts(ctx, releasedSQL, claim, r, nodes)
}

func (s Leases) markHosts(
	ctx context.Context, sql string, claim domain.Claim, r domain.Reservation, nodes []string,
) error {
	type marked struct{ Claimed, Written int }
	done, err := queryOne[marked](ctx, s.DB.pool, sql, r.ProjectID, r.ID, claim.ID, orEmpty(nodes))
	switch {
	case err != nil:
		return err
	case done.Claimed == 0:
		return domain.ErrFenced
	case done.Written < len(nodes):
		return domain.ErrChanged
	}
	return nil
}

const (
	// A host that the reservation had before can be its again.
	forgetReleasedSQL = `
delete from allocations where project_id = $1 and reservation_id = $2 and released_at is not null and node <> $3`

	replacedSQL = `
select greatest(lower(during), clock_timestamp()) as start, upper(during) as until, prepared_at
from allocations
where project_id = $1 and reservation_id = $2 and node = $3 and released_at is null
  and replaced_at is null and upper(during) > clock_timestamp()
for no key update`

	dropReplacedSQL = `delete from allocations where project_id = $1 and reservation_id = $2 and node = $3`
	markReplacedSQL = `
update allocations set replaced_at = clock_timestamp()
where project_id = $1 and reservation_id = $2 and node = $3`

	movedSQL = `
with after as (
    update leases set seq = seq + 1, updated_at = clock_timestamp() where project_id = $1 and id = $2
    returning *, status as previous_status
)
insert into events (project_id, subject, seq, type, at, data)
select project_id, id::text, seq, '` + domain.LeaseEvent + `', updated_at,
       ` + leaseEventData + ` || jsonb_build_object('moved_reservation_id', $3::text)
from after`
)

// Reallocate gives a reservation another host for one of its own (from): one that is up, matches and is free until the
// end. ok is false when no other is. A host that was prepared stays the reservation's until Released: its servers may
// be on it. Then an event says that the reservation has moved.
func (s Leases) Reallocate(
	ctx context.Context, claim domain.Claim, lease domain.Lease, r domain.Reservation, from string,
) (to string, ok bool, err error) {
	err = s.DB.changeTx(ctx, func(tx pgx.Tx) error {
		if _, err := lockClaimed(ctx, tx, claim, lease); err != nil {
			return err
		}
		to, err = reallocate(ctx, tx, lease, r, from)
		return err
	})
	return to, to != "" && err == nil, err
}

func reallocate(
	ctx context.Context, tx pgx.Tx, lease domain.Lease, r domain.Reservation, from string,
) (to string, err error) {
	type replaced struct{ Start, Until, PreparedAt time.Time }
	old, found, err := queryFound[replaced](ctx, tx, replacedSQL, r.ProjectID, r.ID, from)
	if err != nil || !found {
		return "", orChanged(err)
	}
	if _, err := exec(ctx, tx, forgetReleasedSQL, r.ProjectID, r.ID, from); err != nil {
		return "", err
	}
	wanted := need{reservation: r.ID, want: *r.Want}
	wanted.want.Min, wanted.want.Max = 1, 1
	planned, isTaken, err := booking{
		projectID: r.ProjectID, from: old.Start, end: func(time.Time) time.Time { return old.Until },
		needs: []need{wanted},
	}.book(ctx, tx)
	switch {
	case err != nil || !isTaken:
		return "", err
	case old.PreparedAt.IsZero():
		_, err = exec(ctx, tx, dropReplacedSQL, r.ProjectID, r.ID, from)
	default:
		if _, err = exec(ctx, tx, markReplacedSQL, r.ProjectID, r.ID, from); err == nil {
			_, err = exec(ctx, tx, movedSQL, lease.ProjectID, lease.ID, r.ID)
		}
	}
	return planned.hosts[0][0], err
}

// orChanged is domain.ErrChanged for no error.
func orChanged(err error) error {
	if err == nil {
		return domain.ErrChanged
	}
	return err
}
