package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// matchSQL selects the nodes (n) that a reservation can have: $1 to $6 are of a domain.HostWant; $7 are the names
	// of those that have its capabilities, null if it wants none. Hosts that the reservation ($8, $9) has, or that it
	// was given and has not returned, are no others for it.
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
	ctx context.Context, db querier, want domain.HostWant, projectID string, reservation uuid.UUID,
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
