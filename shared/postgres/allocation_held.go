package postgres

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const nextOfSQL = `
select distinct on (a.node) ` + allocationColumns + `
from allocations a join reservations r on r.project_id = a.project_id and r.id = a.reservation_id
where a.node = any($1) and a.during && tstzrange(now(), null) and a.released_at is null
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
	type held struct{ Node string }
	found, err := queryAll[held](ctx, s.DB.pool, heldByOthersSQL, r.ID, orEmpty(nodes))
	var names []string
	for _, h := range found {
		names = append(names, h.Node)
	}
	return names, err
}
