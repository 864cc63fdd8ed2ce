package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Once the order's callback is stored, it gets the events of reused instances as those of new ones.
var reusedSQL = `
with row as (
    update instances set seq = seq + 1, updated_at = clock_timestamp()
    where project_id = $1 and order_id = $2 and position = any($3)
    returning *, state as previous_state, ` + orderActor("$2") + ` as actor
), event as (` + instanceEventSQL + ` row)
select count(*) from row`

// allocate stores what belongs to an order that was stored just now. With Reuse, idle instances of the connection that
// suffice become the order's instances, with their own ids.
func allocate(ctx context.Context, tx pgx.Tx, order domain.Order) error {
	var reused, fresh []int
	if order.ConnectionID == uuid.Nil {
		for n := range order.Instances {
			fresh = append(fresh, n)
		}
		return insertParts(ctx, tx, order, fresh)
	}
	// Before idle instances are read: of two orders that come together the second waits here.
	specs := make([]domain.LaunchSpec, len(order.Instances))
	for n, i := range order.Instances {
		specs[n] = i.Spec
	}
	err := admit(ctx, tx, order.ProjectID, order.ConnectionID, domain.MayAllocate, domain.Need{}, specs...)
	if err != nil {
		return err
	}
	var more domain.Need
	for n, i := range order.Instances {
		var found bool
		if order.Spec.Reuse {
			if found, err = takeIdle(ctx, tx, order, n, i.Spec, uuid.Nil); err != nil {
				return err
			}
		}
		if found {
			reused = append(reused, n)
		} else {
			fresh = append(fresh, n)
			more.Add(i.Spec)
		}
	}
	if err := admit(ctx, tx, order.ProjectID, order.ConnectionID, domain.MayAllocate, more); err != nil {
		return err
	}
	if err := insertParts(ctx, tx, order, fresh); err != nil || len(reused) == 0 {
		return err
	}
	_, err = tx.Exec(ctx, reusedSQL, order.ProjectID, order.ID, reused)
	return err
}
