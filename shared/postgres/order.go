package postgres

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Orders are launch orders with their instances. One replica at a time works on an order (claim.go).
type Orders struct{ DB *DB }

var (
	insertOrderSQL = `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, connection_id, payload, actor,
                    claim_id, claimed_until, status, seq, calls_recorded)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9,
        $10, case when $10::uuid is not null then clock_timestamp() + $11::interval end, 'running', 1, true)
on conflict do nothing
returning clock_timestamp()`

	// An order begins with its first event.
	firstOrderEventSQL = `
insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
select project_id, id::text, seq, '` + domain.OrderEvent + `', clock_timestamp(), id, connection_id, ` + orderData + `
from (select *, null::text as previous_status from orders where project_id = $1 and id = $2) row`

	// An instance begins with its first event.
	insertInstanceSQL = `
with row as (
    insert into instances (project_id, id, order_id, position, name, state, origin, spec, key_name, key_fingerprint,
                           connection_id, remote, lease_id, seq)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 1)
    returning *, null::text as previous_state, ` + orderActor("$3") + ` as actor
)
insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
select project_id, id::text, seq, '` + domain.InstanceEvent + `', clock_timestamp(), order_id, connection_id,
       ` + instanceData + `
from row`

	// There is work left while an instance is undecided, and while a running order needs more than its servers.
	claimOrderSQL = `
update orders o set claim_id = $3, claimed_until = clock_timestamp() + $4::interval, updated_at = now()
where project_id = $1 and id = $2 and ` + unclaimed("o") + `
  and (status = 'running' and (spec->>'on_failure' = 'rollback' or spec->>'stopped' = 'true'
                               or spec->>'reuse' = 'true' or connection_id is not null)
       or exists (select from instances i where i.project_id = $1 and i.order_id = $2
                  and i.server_id is null and i.problem is null))`
)

// Place stores the order, its instances and its callback in one transaction, and claims it unless claimFor is 0. An
// order through a connection must be permitted, and its new instances must fit the connection's quota (allocate). An
// order that is stored already is claimed, if it has work left that nobody does. An order that differs under the same
// id is a Conflict, and so are ids of instances that are taken in the project.
func (o Orders) Place(ctx context.Context, order domain.Order, claimFor time.Duration) (claim domain.Claim, err error) {
	err = o.DB.changeTx(ctx, func(tx pgx.Tx) (err error) {
		claim, err = place(ctx, tx, order, claimFor)
		return err
	})
	return claim, err
}

func place(ctx context.Context, tx pgx.Tx, order domain.Order, claimFor time.Duration) (claim domain.Claim, err error) {
	if claimFor > 0 {
		claim = domain.NewClaim()
	}
	claim.At, err = queryValue[time.Time](ctx, tx, insertOrderSQL, order.ProjectID, order.ID, order.DomainID,
		order.UserID, order.BodySHA256, order.Spec, orNullID(order.ConnectionID), order.Payload, order.Actor,
		orNullID(claim.ID), claimFor)
	if err == nil {
		claim.Acquired, claim.Fresh = claimFor > 0, true
		return claim, allocate(ctx, tx, order)
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return claim, err
	}
	if err := checkSameBody(ctx, tx, order); err != nil || claimFor == 0 {
		return claim, err
	}
	return acquire(ctx, tx, claimOrderSQL, order.ProjectID, order.ID, claimFor)
}

// Claim claims an order that is stored, if it has work left that nobody does.
func (o Orders) Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error) {
	return acquire(ctx, o.DB.pool, claimOrderSQL, order.ProjectID, order.ID, claimFor)
}

// insertParts stores what belongs to a new order: first its callback, which gets every event, then its new instances,
// which are those at these positions, and their lease.
func insertParts(ctx context.Context, tx pgx.Tx, order domain.Order, positions []int) error {
	if err := checkIDs(ctx, tx, order, positions); err != nil {
		return err
	}
	if order.Callback != nil {
		if _, err := insertCallback(ctx, tx, *order.Callback); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, firstOrderEventSQL, order.ProjectID, order.ID); err != nil {
		return takenID(err, "id")
	}
	if err := insertInstances(ctx, tx, order, positions); err != nil {
		return err
	}
	return insertOrderLease(ctx, tx, order)
}

func insertInstances(ctx context.Context, tx pgx.Tx, order domain.Order, positions []int) error {
	batch := &pgx.Batch{}
	for _, n := range positions {
		i := order.Instances[n]
		batch.Queue(insertInstanceSQL, order.ProjectID, i.ID, order.ID, n, i.Name, i.State, domain.OriginLaunched,
			i.Spec, i.KeyName, i.KeyFingerprint, orNullID(i.ConnectionID), i.Remote,
			orNullID(i.LeaseID))
	}
	results := tx.SendBatch(ctx, batch)
	for _, n := range positions {
		if _, err := results.Exec(); err != nil {
			_ = results.Close()
			return takenID(err, instanceID(n))
		}
	}
	return results.Close()
}

func checkSameBody(ctx context.Context, tx pgx.Tx, order domain.Order) error {
	stored, err := queryValue[[]byte](ctx, tx, "select body_sha256 from orders where project_id = $1 and id = $2",
		order.ProjectID, order.ID)
	if err == nil && !bytes.Equal(stored, order.BodySHA256) {
		err = apperr.New(apperr.Conflict, "id %s belongs to another order: the same id needs the same request",
			order.ID)
	}
	return err
}
