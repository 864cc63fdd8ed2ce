package postgres

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Orders are launch orders with their instances.
//
// One replica at a time works on an order: it holds a claim, which ends by itself. Every write of that work
// carries the claim, so a replica that slept through its end writes nothing.
type Orders struct{ DB *DB }

var (
	insertOrderSQL = `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, connection_id, payload, actor, claim_id, claimed_until,
                    status, seq, calls_recorded)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, case when $10::uuid is not null then clock_timestamp() + $11::interval end, 'running', 1, true)
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
    insert into instances (project_id, id, order_id, position, name, state, origin, spec, key_name, key_fingerprint, connection_id, remote, seq)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 1)
    returning *, null::text as previous_state, ` + orderActor("$3") + ` as actor
)
insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
select project_id, id::text, seq, '` + domain.InstanceEvent + `', clock_timestamp(), order_id, connection_id, ` + instanceData + ` from row`

	// There is work left while an instance is undecided, and while an order that wants more than that is running.
	claimOrderSQL = `
update orders o set claim_id = $3, claimed_until = clock_timestamp() + $4, updated_at = now()
where project_id = $1 and id = $2 and coalesce(claimed_until, '-infinity') < clock_timestamp()
  and (status = 'running' and (spec->>'on_failure' = 'rollback' or spec->>'stopped' = 'true' or spec->>'reuse' = 'true'
                            or connection_id is not null)
       or exists (select from instances i where i.project_id = $1 and i.order_id = $2 and i.server_id is null and i.problem is null))`
)

// Place stores the order, its instances and its callback in one transaction, and claims it unless claimFor is 0. An
// order through a connection must be permitted, and all that is new in it must fit the connection's quota: see
// allocate. When the order is there already, it is claimed if there is work left that nobody does; an order that
// differs under the same id is a Conflict, and so are ids of instances that are taken in the project.
func (o Orders) Place(ctx context.Context, order domain.Order, claimFor time.Duration) (claim domain.Claim, err error) {
	err = retryDeadlock(func() error {
		return o.DB.inTx(ctx, func(tx pgx.Tx) (err error) {
			claim, err = place(ctx, tx, order, claimFor)
			return err
		})
	})
	return claim, err
}

func place(ctx context.Context, tx pgx.Tx, order domain.Order, claimFor time.Duration) (domain.Claim, error) {
	claim := domain.Claim{}
	if claimFor > 0 {
		claim.ID = uuid.New()
	}
	err := tx.QueryRow(ctx, insertOrderSQL, order.ProjectID, order.ID, order.DomainID, order.UserID, order.BodySHA256, order.Spec,
		orNullID(order.ConnectionID), order.Payload, order.Actor, orNullID(claim.ID), claimFor).Scan(&claim.At)
	if err == nil {
		claim.Held, claim.Fresh = claimFor > 0, true
		return claim, allocate(ctx, tx, order)
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return claim, err
	}
	if err := sameBody(ctx, tx, order); err != nil || claimFor == 0 {
		return claim, err
	}
	tag, err := tx.Exec(ctx, claimOrderSQL, order.ProjectID, order.ID, claim.ID, claimFor)
	claim.Held = tag.RowsAffected() == 1
	return claim, err
}

// Claim claims an order that is there, if there is work left that nobody does.
func (o Orders) Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error) {
	claim := domain.Claim{ID: uuid.New()}
	tag, err := o.DB.pool.Exec(ctx, claimOrderSQL, order.ProjectID, order.ID, claim.ID, claimFor)
	claim.Held = tag.RowsAffected() == 1
	return claim, classify(err)
}

// begin stores what belongs to an order that was stored just now, but for the instances that are there already: first
// its callback, which gets every event.
func begin(ctx context.Context, tx pgx.Tx, order domain.Order, there []bool) error {
	if err := checkFree(ctx, tx, order, there); err != nil {
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
	return insertInstances(ctx, tx, order, there)
}

func insertInstances(ctx context.Context, tx pgx.Tx, order domain.Order, there []bool) error {
	batch := &pgx.Batch{}
	var queued []int
	for n, i := range order.Instances {
		if there[n] {
			continue
		}
		queued = append(queued, n)
		batch.Queue(insertInstanceSQL, order.ProjectID, i.ID, order.ID, n, i.Name, i.State, domain.OriginLaunched, i.Spec, i.KeyName, i.KeyFingerprint,
			orNullID(i.ConnectionID), i.Remote)
	}
	results := tx.SendBatch(ctx, batch)
	for _, n := range queued {
		if _, err := results.Exec(); err != nil {
			_ = results.Close()
			return takenID(err, instanceID(n))
		}
	}
	return results.Close()
}

const keyedSQL = `
update instances i set key_fingerprint = $4
from orders o
where o.project_id = $1 and o.id = $2 and o.claim_id = $3 and o.claimed_until > clock_timestamp()
  and i.project_id = o.project_id and i.order_id = o.id`

// Keyed writes the fingerprint of the key pair that was made for the order, for all of its instances, if the claim
// still holds, or says domain.ErrFenced.
func (o Orders) Keyed(ctx context.Context, order domain.Order, claim domain.Claim, fingerprint string) error {
	tag, err := o.DB.pool.Exec(ctx, keyedSQL, order.ProjectID, order.ID, claim.ID, fingerprint)
	if err == nil && tag.RowsAffected() == 0 {
		return domain.ErrFenced
	}
	return classify(err)
}

func sameBody(ctx context.Context, tx pgx.Tx, order domain.Order) error {
	var stored []byte
	err := tx.QueryRow(ctx, "select body_sha256 from orders where project_id = $1 and id = $2", order.ProjectID, order.ID).Scan(&stored)
	if err != nil {
		return err
	}
	if !bytes.Equal(stored, order.BodySHA256) {
		return apperr.New(apperr.Conflict, "id %s is another order's: the same id needs the same request", order.ID)
	}
	return nil
}

const renewSQL = `
update orders set claimed_until = clock_timestamp() + $4
where project_id = $1 and id = $2 and claim_id = $3 and claimed_until > clock_timestamp()
  and (connection_id is null or exists (select from connections c where c.id = connection_id and c.status = 'active' and c.suspended_at is null))`

// Renew prolongs the claim from now on, or says domain.ErrFenced: also when the order's connection has ended or is
// suspended.
func (o Orders) Renew(ctx context.Context, order domain.Order, claim domain.Claim, claimFor time.Duration) error {
	tag, err := o.DB.pool.Exec(ctx, renewSQL, order.ProjectID, order.ID, claim.ID, claimFor)
	if err == nil && tag.RowsAffected() == 0 {
		return domain.ErrFenced
	}
	return classify(err)
}

// Now is the database's clock.
func (o Orders) Now(ctx context.Context) (time.Time, error) { return o.DB.Now(ctx) }

// Release ends the claim, so that the next replica need not wait for its end.
func (o Orders) Release(ctx context.Context, order domain.Order, claim domain.Claim) error {
	_, err := o.DB.pool.Exec(ctx,
		"update orders set claim_id = null, claimed_until = null where project_id = $1 and id = $2 and claim_id = $3",
		order.ProjectID, order.ID, claim.ID)
	return classify(err)
}

// Decide writes what Nova said to one instance, unless another replica has claimed the order since. Somebody may have
// observed the same server before.
func (o Orders) Decide(ctx context.Context, claim domain.Claim, i domain.Instance) error {
	var decided bool
	err := retryDeadlock(func() error {
		batch := &pgx.Batch{}
		queueChange(batch, i, uuid.NullUUID{UUID: claim.ID, Valid: true}, nil).QueryRow(func(row pgx.Row) error {
			var n int
			err := row.Scan(&n)
			decided = n == 1
			return err
		})
		return o.DB.pool.SendBatch(ctx, batch).Close()
	})
	if err != nil || decided {
		return classify(err)
	}
	return o.decided(ctx, claim, i)
}

// decided says why Decide wrote nothing: nil when the same server was written down already.
func (o Orders) decided(ctx context.Context, claim domain.Claim, i domain.Instance) error {
	var same bool
	err := o.DB.pool.QueryRow(ctx, `
select coalesce(i.server_id, '') = $4 and o.claim_id = $3 from instances i join orders o on o.project_id = i.project_id and o.id = i.order_id
where i.project_id = $1 and i.id = $2`, i.ProjectID, i.ID, claim.ID, i.ServerID).Scan(&same)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !same {
		return domain.ErrFenced
	}
	return classify(err)
}

const finalizeSQL = `
with before as (
    select * from orders where project_id = $1 and id = $2 and status = 'running' for update
), after as (
    update orders o set status = $3, problem = $4, payload = null, seq = o.seq + 1, updated_at = clock_timestamp()
    from before b where o.project_id = b.project_id and o.id = b.id and $3 <> 'running'
    returning o.*, b.status as previous_status
)
insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
select project_id, id::text, seq, '` + domain.OrderEvent + `', updated_at, id, connection_id, ` + orderData + ` from after`

// orderData is the data of an order's event, from a row of orders with previous_status. Its actor has placed the order;
// what came of that is Nova's doing.
const orderData = `jsonb_strip_nulls(jsonb_build_object('order_id', id, 'status', status, 'previous_status', previous_status, 'fault', problem,
        'actor', case when previous_status is null then actor || jsonb_build_object('order_id', id) end))`

// orderActor is who placed the order of this id in the project $1, as the actor of what the order does.
func orderActor(id string) string {
	return "(select o.actor || jsonb_build_object('order_id', o.id) from orders o where o.project_id = $1 and o.id = " + id + ")"
}

// Finalize writes the order's final status and Problem, with their event; a final status is never changed.
func (o Orders) Finalize(ctx context.Context, order domain.Order) error {
	return classify(retryDeadlock(func() error {
		_, err := o.DB.pool.Exec(ctx, finalizeSQL, order.ProjectID, order.ID, order.Status, order.Problem)
		return err
	}))
}

const (
	getOrderSQL = `
select id, project_id, domain_id, user_id, body_sha256, spec, status, created_at,
       coalesce(connection_id, '00000000-0000-0000-0000-000000000000'), payload, calls_recorded, problem, clock_timestamp()
from orders where project_id = $1 and id = $2`

	orderInstancesSQL = `
select ` + instanceColumns + ` from instances where project_id = $1 and order_id = $2 order by position`
)

// Get reads an order of the project with its instances; NotFound when the project has none of that id.
func (o Orders) Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error) {
	var order domain.Order
	batch := &pgx.Batch{}
	batch.Queue(getOrderSQL, projectID, id).QueryRow(func(row pgx.Row) error {
		return row.Scan(&order.ID, &order.ProjectID, &order.DomainID, &order.UserID, &order.BodySHA256, &order.Spec, &order.Status,
			&order.CreatedAt, &order.ConnectionID, &order.Payload, &order.CallsRecorded, &order.Problem, &order.ReadAt)
	})
	batch.Queue(orderInstancesSQL, projectID, id).Query(func(rows pgx.Rows) (err error) {
		order.Instances, err = pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Instance])
		return err
	})
	readCalls(batch, &order, projectID, id)
	err := o.DB.pool.SendBatch(ctx, batch).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		return order, noOrder(id)
	}
	order.CreatedAt = order.CreatedAt.UTC()
	return order, classify(err)
}

// Find reads an order that is within the filter; NotFound for any other.
func (o Orders) Find(ctx context.Context, filter domain.Filter, id uuid.UUID) (domain.Order, error) {
	order, err := o.Get(ctx, filter.ProjectID, id)
	if err == nil && filter.ConnectionID != uuid.Nil && order.ConnectionID != filter.ConnectionID {
		return domain.Order{}, noOrder(id)
	}
	return order, err
}

func noOrder(id uuid.UUID) error { return apperr.New(apperr.NotFound, "there is no order %s", id) }

// HeldFor is how long the claim of the replica that works on the order right now holds, if that is not renewed; 0 =
// none does.
func (o Orders) HeldFor(ctx context.Context, projectID string, id uuid.UUID) (held time.Duration, err error) {
	err = o.DB.pool.QueryRow(ctx, `
select greatest(coalesce(claimed_until - clock_timestamp(), interval '0'), interval '0') from orders where project_id = $1 and id = $2`,
		projectID, id).Scan(&held)
	return held, classify(err)
}
