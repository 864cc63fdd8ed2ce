package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// booking is one host reservation of a lease that is to get hosts.
type booking struct {
	lease    domain.Lease
	n        int // of the reservation
	cleaning time.Duration
}

func (b booking) reservation() domain.Reservation { return b.lease.Reservations[b.n] }

// until is the end of its allocations.
func (b booking) until() time.Time { return b.lease.EndsAt.Add(b.cleaning) }

const (
	// matchSQL selects the nodes (n) that a reservation can have: $1 to $6 are of a domain.HostWant; $7 are the names
	// of those that have its capabilities, null if it wants none.
	matchSQL = `n.pool = 'reservable' and ($1 = '' or n.region = $1) and ($2 = '' or n.zone = $2)
      and n.vcpus >= $3 and n.ram_mb >= $4 and n.disk_gb >= $5 and n.traits @> $6::text[]
      and ($7::text[] is null or n.name = any($7::text[]))`

	// inServiceSQL selects the nodes (n) that are up and not cordoned. Others are expected back at backSQL, which stays
	// the same for a day, so that what a refusal names can be booked: no lease that begins before gets them.
	inServiceSQL = `(n.is_up and n.enabled and n.status <> 'down')`
	backSQL      = `(date_trunc('day', now(), 'UTC') + interval '2 days')`

	countMatchesSQL = `select count(*)::int from nodes n where ` + matchSQL

	// The exclusion of allocations decides: a host that another booking takes meanwhile is left out. The smallest hosts
	// come first, and random ones among equals. They are inserted in the order of their names, so that two bookings do
	// not wait for one another. The lock, whose mode is the argument, keeps a host in the pool until the allocation is
	// stored: Nodes.Leave waits for it.
	allocateFormat = `
with picked as materialized (
    select n.name from nodes n
    where ` + matchSQL + ` and (` + inServiceSQL + ` or $8 >= ` + backSQL + `)
      and n.name not in (select a.node from allocations a where a.during && tstzrange($8, $9))
    order by n.vcpus, n.ram_mb, n.disk_gb, random() limit $10
    for %s
), taken as (
    insert into allocations (project_id, reservation_id, node, during)
    select $11, $12, name, tstzrange($8, $9) from picked order by name
    on conflict do nothing returning node
)
select (select count(*)::int from picked) as picked, array(select node from taken) as taken`
)

// allocated is what allocateSQL returns.
type allocated struct {
	Picked int      // free hosts that it chose
	Taken  []string // those of them that the reservation has now
}

var (
	// allocateFastSQL leaves out hosts that another booking has locked, and so may choose too few.
	allocateFastSQL = fmt.Sprintf(allocateFormat, "no key update of n skip locked")
	// allocateSQL looks at all hosts, and waits for bookings that take the same ones.
	allocateSQL = fmt.Sprintf(allocateFormat, "key share of n")
)

// errTooFew rolls back an attempt that got fewer hosts than it needs.
var errTooFew = errors.New("too few hosts")

// allocateHosts gives a reservation from min to max hosts, or returns noHosts.
func allocateHosts(ctx context.Context, tx pgx.Tx, b booking) error {
	want := *b.reservation().Want
	match, err := matchArgs(ctx, tx, want)
	if err != nil {
		return err
	}
	args := append(match, b.lease.StartsAt, b.until(), want.Max, b.lease.ProjectID, b.reservation().ID)
	_, err = takeHosts(ctx, tx, want.Min, want.Max, args)
	if errors.Is(err, errTooFew) {
		return refuse(ctx, tx, b, match)
	}
	return err
}

// takeHosts takes hosts, or returns errTooFew when fewer than least are free. When another booking was faster it
// chooses again, as often as that happens: each time that one has got its hosts. args are those of the statements.
func takeHosts(ctx context.Context, tx pgx.Tx, least, most int, args []any) (taken []string, err error) {
	for {
		got, err := tryToTake(ctx, tx, allocateFastSQL, most, args)
		if errors.Is(err, errTooFew) {
			got, err = tryToTake(ctx, tx, allocateSQL, least, args)
		}
		if !errors.Is(err, errTooFew) || got.Picked < least {
			return got.Taken, err
		}
	}
}

// tryToTake takes hosts by one of the statements, or none when it gets fewer than it needs.
func tryToTake(ctx context.Context, tx pgx.Tx, sql string, needs int, args []any) (got allocated, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
		got, err = queryOne[allocated](ctx, tx, sql, args...)
		if err == nil && len(got.Taken) < needs {
			err = errTooFew
		}
		return err
	})
	return got, err
}

// matchArgs are the parameters of matchSQL.
func matchArgs(ctx context.Context, db querier, want domain.HostWant) ([]any, error) {
	args := []any{
		want.Region, want.Zone, want.VCPUs, want.RAMMB, want.DiskGB, orEmpty(want.Traits), []string(nil),
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

// noHosts says that a reservation (n) got no hosts.
type noHosts struct {
	n, matching int
	at, end     time.Time // of the lease when it would get them; zero = never
}

// Error implements error.
func (e *noHosts) Error() string { return fmt.Sprintf("no hosts for reservation %d", e.n) }

// refusal is the error for the user.
func (e *noHosts) refusal(want domain.HostWant) error {
	field := fmt.Sprintf("reservations[%d].min", e.n)
	if e.matching < want.Min {
		refusal := apperr.InvalidField(field,
			fmt.Sprintf("is %d, but the number of reservable hosts that match is %d", want.Min, e.matching))
		refusal.Code = apperr.Unprocessable
		return &domain.FreeError{Refusal: refusal}
	}
	detail := fmt.Sprintf("is %d, but too few of the hosts that match (%d) are free, up and not cordoned for the "+
		"whole period", want.Min, e.matching)
	refusal := apperr.InvalidField(field, detail)
	refusal.Code = apperr.Conflict
	return &domain.FreeError{Refusal: refusal, FreeAt: e.at, FreeEnd: e.end}
}

// refuse says why a reservation got no hosts, and when it would get them.
func refuse(ctx context.Context, tx pgx.Tx, b booking, match []any) error {
	want := *b.reservation().Want
	matching, err := queryValue[int](ctx, tx, countMatchesSQL, match...)
	if err != nil {
		return err
	}
	refused := &noHosts{n: b.n, matching: matching}
	if matching < want.Min {
		return refused
	}
	slots, err := freeSlots(ctx, tx, match, search{
		from: b.lease.StartsAt, until: farAway, hosts: want.Min, limit: 1,
		end: func(start time.Time) time.Time { return b.lease.EndFrom(start).Add(b.cleaning) },
	})
	if err != nil {
		return err
	}
	if len(slots) > 0 {
		refused.at, refused.end = slots[0].From, b.lease.EndFrom(slots[0].From)
	}
	return refused
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
