package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// matchSQL selects the nodes (n) that a reservation can have: $1 to $6 are of a domain.HostRequest; $7 are the
	// names of those that have its capabilities, null if it wants none. Hosts that the reservation ($8, $9) has, or
	// that it was given and has not returned, are no others for it.
	matchSQL = `n.pool = 'reservable' and ($1 = '' or n.region = $1) and ($2 = '' or n.zone = $2)
      and n.vcpus >= $3 and n.ram_mb >= $4 and n.disk_gb >= $5 and n.traits @> $6::text[]
      and ($7::text[] is null or n.name = any($7::text[]))
      and n.name not in (select a.node from allocations a where a.project_id = $8 and a.reservation_id = $9)`

	// heldSince selects the nodes of allocations whose time was over then, and that are not returned.
	heldSince = `(
    select a.node from allocations a
    where a.prepared_at is not null and a.released_at is null and upper(a.during) <= %s)`

	// backSQL is when hosts that are out of service are expected back. It stays the same for a day, so that what a
	// refusal names can be booked.
	backSQL = `(date_trunc('day', now(), 'UTC') + interval '2 days')`

	matchingSQL = `select n.name from nodes n where ` + matchSQL

	// The exclusion of allocations decides: a host that another booking takes meanwhile is left out. Hosts that are
	// locked by another booking are left out, so that fewer than $12 may be found: then none is taken. Hosts are
	// inserted in the order of their names, so that two bookings do not wait for one another. The lock keeps a host in
	// the pool until the allocation is stored: Nodes.Leave waits for it.
	allocateFormat = `
with picked as materialized (
    select n.name from nodes n
    where ` + matchSQL + ` and (%s or $10 >= ` + backSQL + `)
      and n.name not in (select a.node from allocations a where a.during && tstzrange($10, $11))
    order by %s limit $12
    for no key update of n skip locked
), taken as (
    insert into allocations (project_id, reservation_id, node, during)
    select $8, $9, name, tstzrange($10, $11) from picked
    where (select count(*) from picked) = $12 order by name
    on conflict do nothing returning node
)
select node from taken`

	// $2 and $3 are hosts and their reservations.
	takePlannedSQL = `
with picked as materialized (
    select n.name, w.reservation_id from unnest($2::text[], $3::uuid[]) w (name, reservation_id)
    join nodes n on n.name = w.name
    where n.pool = 'reservable' order by n.name
    for key share of n
)
insert into allocations (project_id, reservation_id, node, during)
select $1, reservation_id, name, tstzrange($4, $5) from picked order by name
on conflict do nothing returning node`
)

var (
	// inServiceSQL selects the nodes (n) that are up, not cordoned, and returned by the lease that had them. Others
	// are for leases that begin at backSQL or later. A lease has a quarter of an hour to return its hosts.
	inServiceSQL = `(n.is_up and n.enabled and n.status <> 'down' and n.name not in ` +
		fmt.Sprintf(heldSince, "now() - interval '15 minutes'") + `)`

	// bestFirst chooses hosts (n) that are returned, the smallest ones of these, and random ones among equals.
	bestFirst = `n.name in ` + fmt.Sprintf(heldSince, "now()") + `, n.vcpus, n.ram_mb, n.disk_gb, random()`

	allocateSQL = fmt.Sprintf(allocateFormat, inServiceSQL, bestFirst)
)

// errTooFew rolls back an attempt that got fewer hosts than it needs.
var errTooFew = errors.New("too few hosts")

// takeHosts takes as many hosts as the statement is to return, or none.
func takeHosts(ctx context.Context, tx pgx.Tx, count int, sql string, args ...any) (taken []string, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
		taken, err = queryColumn[string](ctx, tx, sql, args...)
		if err == nil && len(taken) < count {
			err = errTooFew
		}
		return err
	})
	if errors.Is(err, errTooFew) {
		return nil, nil
	}
	return taken, err
}

// matchArgs are the parameters of matchSQL.
func matchArgs(
	ctx context.Context, db querier, want domain.HostRequest, projectID string, reservation uuid.UUID,
) ([]any, error) {
	args := []any{
		want.Region, want.Zone, want.VCPUs, want.RAMMB, want.DiskGB, orEmpty(want.Traits), []string(nil), projectID,
		reservation,
	}
	if len(want.Capabilities) == 0 {
		return args, nil
	}
	nodes, err := queryAll[domain.Node](ctx, db, "select "+nodeColumns+" from nodes n where "+matchSQL, args...)
	names := []string{}
	for _, n := range nodes {
		if want.Matches(n) {
			names = append(names, n.Name)
		}
	}
	args[6] = names
	return args, err
}

const listAllocationsSQL = `
select ` + allocationColumns + `
from allocations a join reservations r on r.project_id = a.project_id and r.id = a.reservation_id
where a.during && tstzrange($1, $2) and not isempty(a.during)
  and ($3 = '' or (a.node, lower(a.during), a.reservation_id) > ($3, $4::timestamptz, $5::uuid))
order by a.node, lower(a.during), a.reservation_id limit nullif($6::int, 0)`

// Allocations lists which host is whose, of all projects. It is for admins.
func (s Leases) Allocations(ctx context.Context, q domain.AllocationQuery) ([]domain.Allocation, error) {
	return queryAll[domain.Allocation](ctx, s.DB.pool, listAllocationsSQL, q.From, q.Until, q.After.Node, q.After.From,
		q.After.ReservationID, q.Limit)
}

const nextOfSQL = `
select distinct on (a.node) ` + allocationColumns + `
from allocations a join reservations r on r.project_id = a.project_id and r.id = a.reservation_id
where a.node = any($1) and a.released_at is null and (upper(a.during) > now() or a.prepared_at is not null)
order by a.node, lower(a.during)`

// NextOf reads which reservation has each of the hosts now, or gets it next; hosts without one are left out. It is for
// admins.
func (s Leases) NextOf(ctx context.Context, nodes ...string) (map[string]domain.Allocation, error) {
	found, err := queryAll[domain.Allocation](ctx, s.DB.pool, nextOfSQL, orEmpty(nodes))
	next := map[string]domain.Allocation{}
	for _, a := range found {
		next[a.Node] = a
	}
	return next, err
}

// A released host of the reservation itself does not count: it has been its before.
const heldByOthersSQL = `
select distinct node from allocations
where node = any($2) and reservation_id <> $1 and prepared_at is not null and released_at is null order by node`

// HeldByOthers lists those of the hosts that another reservation has not returned in Nova and Placement yet.
func (s Leases) HeldByOthers(ctx context.Context, r domain.Reservation, nodes ...string) ([]string, error) {
	return queryColumn[string](ctx, s.DB.pool, heldByOthersSQL, r.ID, orEmpty(nodes))
}

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

	// The time for cleaning begins now; an allocation that has ended already keeps its end.
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
// be on it. Then an event reports that the reservation has moved.
func (s Leases) Reallocate(
	ctx context.Context, claim domain.Claim, lease domain.Lease, r domain.Reservation, from string,
) (to string, ok bool, err error) {
	to, err = changeValue(ctx, s.DB, func(tx pgx.Tx) (string, error) {
		if _, err := lockClaimed(ctx, tx, claim, lease); err != nil {
			return "", err
		}
		return reallocate(ctx, tx, lease, r, from)
	})
	return to, to != "" && err == nil, err
}

func reallocate(
	ctx context.Context, tx pgx.Tx, lease domain.Lease, r domain.Reservation, from string,
) (to string, err error) {
	type replaced struct{ Start, Until, PreparedAt time.Time }
	old, err := queryOne[replaced](ctx, tx, replacedSQL, r.ProjectID, r.ID, from)
	if err != nil {
		return "", ifNone(err, domain.ErrChanged)
	}
	if _, err := exec(ctx, tx, forgetReleasedSQL, r.ProjectID, r.ID, from); err != nil {
		return "", err
	}
	wanted := need{reservation: r.ID, want: *r.Request}
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

// endAllocationsSQL returns the hosts of a lease: what has ended stays for the record, what has not begun is deleted.
// The time for cleaning begins now.
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
