package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	getOrderSQL = `
select id, project_id, domain_id, user_id, body_sha256, spec, status, created_at, connection_id, payload,
       calls_recorded, problem, clock_timestamp() as read_at
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
