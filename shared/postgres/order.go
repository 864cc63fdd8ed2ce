package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Orders are launch orders with their instances. One replica at a time works on an order (claim.go).
type Orders struct{ DB *DB }

var (
	insertOrderSQL = `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, connection_id, payload, actor,
                    claim_id, claimed_until, status, seq)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9,
        $10, case when $10::uuid is not null then clock_timestamp() + $11::interval end, 'running', 1)
on conflict do nothing
returning clock_timestamp()`

	// An order begins with its first event.
	firstOrderEventSQL = `
insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
values ($1, $2::uuid::text, 1, '` + domain.OrderEvent + `', clock_timestamp(), $2, $3, $4)`

	// An instance begins with its first event.
	insertInstanceSQL = `
with row as (
    insert into instances (project_id, id, order_id, position, name, state, origin, spec, key_name, key_fingerprint,
                           connection_id, remote, lease_id, floating_ip_release_at, seq)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, case when $14::boolean then now() end, 1)
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
  and (status = 'running' and ($5::boolean or connection_id is not null)
       or exists (select from instances i where i.project_id = $1 and i.order_id = $2
                  and i.server_id is null and i.problem is null))`
)

// Place stores the order, its instances and its callback in one transaction, and claims it unless claimFor is 0. An
// order through a connection must be permitted, and its new instances must fit the connection's quota (allocate). An
// order that is stored already is claimed, if it has work left that no one does. An order that differs under the same
// id is a Conflict, and so are ids of instances that are taken in the project.
func (o Orders) Place(ctx context.Context, order domain.Order, claimFor time.Duration) (claim domain.Claim, err error) {
	return changeValue(ctx, o.DB, func(tx pgx.Tx) (domain.Claim, error) { return place(ctx, tx, order, claimFor) })
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
	return acquire(ctx, tx, claimOrderSQL, order.ProjectID, order.ID, claimFor, order.Spec.NeedsReconcile())
}

// Claim claims an order that is stored, if it has work left that no one does.
func (o Orders) Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error) {
	return acquire(ctx, o.DB.pool, claimOrderSQL, order.ProjectID, order.ID, claimFor, order.Spec.NeedsReconcile())
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
	placed := domain.OrderEventData{
		OrderID: order.ID, Status: domain.OrderRunning, Actor: order.Actor.Ordering(order.ID),
	}
	if _, err := tx.Exec(ctx, firstOrderEventSQL, order.ProjectID, order.ID, orNullID(order.ConnectionID),
		placed); err != nil {
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
			orNullID(i.LeaseID), i.Spec.MakesFloatingIP())
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

// ListTaken lists those of the ids that the project uses already.
func (o Orders) ListTaken(ctx context.Context, projectID string, ids []uuid.UUID) ([]uuid.UUID, error) {
	return queryColumn[uuid.UUID](ctx, o.DB.pool, "select distinct id from ("+takenSQL+") taken", projectID, ids)
}

// isTaken reports whether the project uses the id already.
func isTaken(ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID) (bool, error) {
	return queryValue[bool](ctx, tx, "select exists ("+takenSQL+")", projectID, []uuid.UUID{id})
}

// checkIDs rejects an order that was stored just now when the project uses its id for something else, or that of one of
// its new instances. Of two orders that come concurrently with the same id, one fails at its first event.
func checkIDs(ctx context.Context, tx pgx.Tx, order domain.Order, positions []int) error {
	ids := []uuid.UUID{order.ID}
	for _, n := range positions {
		ids = append(ids, order.Instances[n].ID)
	}
	taken, err := queryColumn[uuid.UUID](ctx, tx, takenSQL, order.ProjectID, ids)
	if err != nil {
		return err
	}
	for _, n := range positions {
		if slices.Contains(taken, order.Instances[n].ID) {
			return errTaken(instanceID(n), nil)
		}
	}
	self := slices.Index(taken, order.ID)
	if slices.Contains(taken[self+1:], order.ID) {
		return errTaken("id", nil)
	}
	return nil
}

// takenID names the field whose id is taken, if err is a Conflict.
func takenID(err error, field string) error {
	if apperr.CodeOf(classify(err)) != apperr.Conflict {
		return err
	}
	return errTaken(field, err)
}

func errTaken(field string, cause error) error {
	taken := apperr.InvalidField(field, "is taken: something else of the project has it")
	taken.Code, taken.Cause = apperr.Conflict, cause
	return taken
}

// instanceID is the field of the nth instance's id in a request.
func instanceID(n int) string { return fmt.Sprintf("instances[%d].id", n) }

const (
	getOrderSQL = `
select id, project_id, domain_id, user_id, body_sha256, spec, status, created_at, connection_id, payload,
       problem, clock_timestamp() as read_at
from orders where project_id = $1 and id = $2`

	orderInstancesSQL = `
select ` + instanceColumns + ` from instances where project_id = $1 and order_id = $2 order by position`

	callsSQL = `
select c.id, c.instance_id, c.name, c.user_id, c.began_at, c.until, c.ended_at, coalesce(c.server_id, '') as server_id
from create_calls c join instances i on i.project_id = c.project_id and i.id = c.instance_id
where i.project_id = $1 and i.order_id = $2 order by c.began_at`
)

// Get reads an order of the project with its instances; NotFound when the project has none of that id.
func (o Orders) Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error) {
	var found []domain.Order
	var instances []domain.Instance
	var calls []domain.CreateCall
	batch := &pgx.Batch{}
	batch.Queue(getOrderSQL, projectID, id).Query(collectInto(&found))
	batch.Queue(orderInstancesSQL, projectID, id).Query(collectInto(&instances))
	batch.Queue(callsSQL, projectID, id).Query(collectInto(&calls))
	if err := o.DB.pool.SendBatch(ctx, batch).Close(); err != nil {
		return domain.Order{}, classify(err)
	}
	if len(found) == 0 {
		return domain.Order{}, noOrder(id)
	}
	order := found[0]
	order.Instances, order.Calls = instances, calls
	return order, nil
}

// Find reads an order that is within the filter; NotFound for any other.
func (o Orders) Find(ctx context.Context, filter domain.Filter, id uuid.UUID) (domain.Order, error) {
	order, err := o.Get(ctx, filter.ProjectID, id)
	if err == nil && filter.ConnectionID != uuid.Nil && order.ConnectionID != filter.ConnectionID {
		return domain.Order{}, noOrder(id)
	}
	return order, err
}

// The newest come first, from behind a marker. Ids are the caller's, so their order is not that of time.
const (
	listedOrdersSQL = `
select id, project_id, spec, status, problem, created_at, connection_id,
       coalesce(claimed_until > clock_timestamp(), false) as busy
from orders
where ($2::text[] is null or status = any($2)) and (created_at, id) < ($3, $4) and project_id = $1`

	ordersOfProjectSQL    = listedOrdersSQL + ` order by created_at desc, id desc limit $5`
	ordersOfConnectionSQL = listedOrdersSQL + ` and connection_id = $6 order by created_at desc, id desc limit $5`

	instancesOfOrdersSQL = `
select ` + instanceColumns + ` from instances where project_id = $1 and order_id = any($2) order by order_id, position`
)

// List reads a page of the orders that the query selects, with their instances, the newest first.
func (o Orders) List(ctx context.Context, q domain.OrderQuery) ([]domain.ListedOrder, error) {
	before, err := o.placedAt(ctx, q)
	if err != nil {
		return nil, err
	}
	sql, args := ordersOfProjectSQL, []any{q.ProjectID, q.Statuses, before, q.Marker, q.Limit}
	if q.ConnectionID != uuid.Nil {
		sql, args = ordersOfConnectionSQL, append(args, q.ConnectionID)
	}
	found, err := queryAll[domain.ListedOrder](ctx, o.DB.pool, sql, args...)
	if err != nil || len(found) == 0 {
		return found, err
	}
	return found, o.addInstances(ctx, q.ProjectID, found)
}

// placedAt is when the query's marker was placed; infinity when there is no marker.
func (o Orders) placedAt(ctx context.Context, q domain.OrderQuery) (any, error) {
	if q.Marker == uuid.Nil {
		return "infinity", nil
	}
	at, err := queryValue[time.Time](ctx, o.DB.pool, `
select created_at from orders where project_id = $1 and id = $2 and ($3::uuid is null or connection_id = $3)`,
		q.ProjectID, q.Marker, orNullID(q.ConnectionID))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, apperr.Malformed("marker", "the id of an order of this list", q.Marker.String())
	}
	return at, err
}

func (o Orders) addInstances(ctx context.Context, projectID string, orders []domain.ListedOrder) error {
	ids := make([]uuid.UUID, len(orders))
	byID := make(map[uuid.UUID]*domain.Order, len(orders))
	for n := range orders {
		ids[n] = orders[n].ID
		byID[ids[n]] = &orders[n].Order
	}
	found, err := queryAll[domain.Instance](ctx, o.DB.pool, instancesOfOrdersSQL, projectID, ids)
	for _, i := range found {
		byID[i.OrderID].Instances = append(byID[i.OrderID].Instances, i)
	}
	return err
}
