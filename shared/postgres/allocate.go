package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Once the order's callback is there, it gets the events of what was taken as of what is new.
var reusedSQL = `
with row as (
    update instances set seq = seq + 1, updated_at = clock_timestamp()
    where project_id = $1 and order_id = $2 and position = any($3)
    returning *, state as previous_state, ` + orderActor("$2") + ` as actor
), event as (` + instanceEventSQL + ` row)
select count(*) from row`

// allocate stores what belongs to an order that was stored just now. With Reuse, idle instances of the connection take
// the places of those that need no more; these keep their own ids.
func allocate(ctx context.Context, tx pgx.Tx, order domain.Order) error {
	reused := make([]bool, len(order.Instances))
	if order.ConnectionID == uuid.Nil {
		return begin(ctx, tx, order, reused)
	}
	// Before idle instances are read: of two orders that come together the second waits here.
	specs := make([]domain.LaunchSpec, len(order.Instances))
	for n, i := range order.Instances {
		specs[n] = i.Spec
	}
	if err := admit(ctx, tx, order.ProjectID, order.ConnectionID, domain.MayAllocate, domain.Need{}, specs...); err != nil {
		return err
	}
	var more domain.Need
	var taken []int
	for n, i := range order.Instances {
		var err error
		if order.Spec.Reuse {
			if reused[n], err = takeIdle(ctx, tx, order, n, i.Spec, uuid.Nil); err != nil {
				return err
			}
		}
		if reused[n] {
			taken = append(taken, n)
		} else {
			more.Add(i.Spec)
		}
	}
	if err := admit(ctx, tx, order.ProjectID, order.ConnectionID, domain.MayAllocate, more); err != nil {
		return err
	}
	if err := begin(ctx, tx, order, reused); err != nil || len(taken) == 0 {
		return err
	}
	_, err := tx.Exec(ctx, reusedSQL, order.ProjectID, order.ID, taken)
	return err
}

// ResolvedSQL writes what an order's instances are made of, under the order's claim.
const resolvedSQL = `
update instances i set spec = $4, key_name = $5, key_fingerprint = $6
from orders o
where o.project_id = $1 and o.id = $7 and o.claim_id = $3 and o.claimed_until > clock_timestamp()
  and i.project_id = o.project_id and i.order_id = o.id and i.id = $2`

// Resolved writes the Spec, KeyName and KeyFingerprint of an order's instances, now that the names in it are ids, if
// the claim still holds, or says domain.ErrFenced.
func (o Orders) Resolved(ctx context.Context, order domain.Order, claim domain.Claim) error {
	return o.DB.inTx(ctx, func(tx pgx.Tx) error {
		for _, i := range order.Instances {
			tag, err := tx.Exec(ctx, resolvedSQL, order.ProjectID, i.ID, claim.ID, i.Spec, i.KeyName, i.KeyFingerprint, order.ID)
			if err == nil && tag.RowsAffected() == 0 {
				err = domain.ErrFenced
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
