package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	insertDelegatedSQL = `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, connection_id, payload, status, seq, calls_recorded)
values ($1, $2, $3, $4, $5, $6, $7, $8, 'running', 1, true)
on conflict do nothing`

	// An instance is idle that is stopped, and that nobody has ordered or asked anything of that is still to be done. The
	// smallest that suffices is taken.
	reuseSQL = `
with idle as (
    select i.project_id, i.id from instances i
    where i.project_id = $1 and i.connection_id = $2 and i.state = 'stopped' and i.disconnected_at is null and i.missed_at is null
      and i.server_id is not null and coalesce(i.spec->'metadata', '{}') @> $5
      and (i.spec->>'vcpus')::int >= $6 and (i.spec->>'ram_mb')::int >= $7 and coalesce((i.spec->>'disk_gb')::int, 0) >= $8
      and not exists (select from actions a where a.project_id = i.project_id and a.instance_id = i.id and a.status = 'running')
      and not exists (select from orders o where o.project_id = i.project_id and o.id = i.order_id and o.status = 'running')
    order by (i.spec->>'ram_mb')::int, (i.spec->>'vcpus')::int, i.created_at limit 1 for update skip locked
)
update instances i set order_id = $3, position = $4, updated_at = clock_timestamp()
from idle where i.project_id = idle.project_id and i.id = idle.id`

	// Once the order's callback is there, it hears of what was taken as of what is new.
	reusedSQL = `
with row as (
    update instances set seq = seq + 1, updated_at = clock_timestamp()
    where project_id = $1 and order_id = $2 and position = any($3)
    returning *, state as previous_state
), event as (` + instanceEventSQL + ` row)
select count(*) from row`
)

// PlaceDelegated stores an order that run-connections works on, with its instances and its callback, in one transaction: if the
// connection permits it and all that is new fits the connection's quota. With Reuse, idle instances of the connection take the
// places of those that need no more; these keep their own ids. fresh is false when the order was there already; one that differs
// under the same id is a Conflict, and so are ids of instances that are taken in the project.
func (o Orders) PlaceDelegated(ctx context.Context, order domain.Order) (fresh bool, err error) {
	err = again(func() error {
		return o.DB.inTx(ctx, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, insertDelegatedSQL, order.ProjectID, order.ID, order.DomainID, order.UserID, order.BodySHA256, order.Spec,
				order.ConnectionID, order.Payload)
			if err != nil {
				return err
			}
			if fresh = tag.RowsAffected() == 1; !fresh {
				return sameBody(ctx, tx, order)
			}
			return allocate(ctx, tx, order)
		})
	})
	return fresh, err
}

func allocate(ctx context.Context, tx pgx.Tx, order domain.Order) error {
	// Before idle instances are looked at: of two orders that come together the second waits here.
	if err := admit(ctx, tx, order.ProjectID, order.ConnectionID, domain.MayAllocate, domain.Need{}); err != nil {
		return err
	}
	var more domain.Need
	var taken []int
	reused := make([]bool, len(order.Instances))
	for n, i := range order.Instances {
		if order.Spec.Reuse {
			tag, err := tx.Exec(ctx, reuseSQL, order.ProjectID, order.ConnectionID, order.ID, n, labels(i), i.Spec.VCPUs, i.Spec.RAMMB, i.Spec.DiskGB)
			if err != nil {
				return err
			}
			reused[n] = tag.RowsAffected() == 1
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
	if err := beginWithout(ctx, tx, order, reused); err != nil || len(taken) == 0 {
		return err
	}
	_, err := tx.Exec(ctx, reusedSQL, order.ProjectID, order.ID, taken)
	return err
}

// labels are the metadata that an idle instance must have, too.
func labels(i domain.Instance) map[string]string {
	if i.Spec.Metadata == nil {
		return map[string]string{}
	}
	return i.Spec.Metadata
}

// ResolvedSQL writes what an order's instances are made of, under the order's claim.
const resolvedSQL = `
update instances i set spec = $4, key_name = $5, key_fingerprint = $6
from orders o
where o.project_id = $1 and o.id = $7 and o.claim_id = $3 and o.claimed_until > clock_timestamp()
  and i.project_id = o.project_id and i.order_id = o.id and i.id = $2`

// Resolved writes the Spec, KeyName and KeyFingerprint of an order's instances, now that the names in it are ids, if the claim
// still holds, or says domain.ErrFenced.
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

// GetThrough reads an order that was placed through the connection; NotFound for any other.
func (o Orders) GetThrough(ctx context.Context, through domain.Through, id uuid.UUID) (domain.Order, error) {
	order, err := o.Get(ctx, through.ProjectID, id)
	if err == nil && order.ConnectionID != through.ConnectionID {
		return domain.Order{}, noOrder(id)
	}
	return order, err
}
