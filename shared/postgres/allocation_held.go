package postgres

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
