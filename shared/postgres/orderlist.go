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

// The newest come first, from behind a marker. Ids are the caller's, so their order is not that of time.
const (
	listedOrdersSQL = `
select id, project_id, spec, status, problem, created_at, coalesce(connection_id, '00000000-0000-0000-0000-000000000000'),
       coalesce(claimed_until > clock_timestamp(), false)
from orders
where ($2::text[] is null or status = any($2)) and (created_at, id) < ($3, $4) and project_id = $1`

	ordersOfProjectSQL = listedOrdersSQL + ` order by created_at desc, id desc limit $5`
	ordersThroughSQL   = listedOrdersSQL + ` and connection_id = $6 order by created_at desc, id desc limit $5`

	instancesOfOrdersSQL = `
select ` + instanceColumns + ` from instances where project_id = $1 and order_id = any($2) order by order_id, position`
)

// List reads a page of the orders that the query asks for, with their instances, the newest first.
func (o Orders) List(ctx context.Context, q domain.OrderQuery) ([]domain.ListedOrder, error) {
	before, err := o.mark(ctx, q)
	if err != nil {
		return nil, err
	}
	sql, args := ordersOfProjectSQL, []any{q.ProjectID, q.Statuses, before, q.Marker, q.Limit}
	if q.ConnectionID != uuid.Nil {
		sql, args = ordersThroughSQL, append(args, q.ConnectionID)
	}
	rows, _ := o.DB.pool.Query(ctx, sql, args...)
	found, err := pgx.CollectRows(rows, scanListed)
	if err != nil || len(found) == 0 {
		return found, classify(err)
	}
	return found, o.fill(ctx, q.ProjectID, found)
}

// mark is when the order was placed that the page begins behind; after everything when there is no marker.
func (o Orders) mark(ctx context.Context, q domain.OrderQuery) (any, error) {
	if q.Marker == uuid.Nil {
		return "infinity", nil
	}
	var at time.Time
	err := o.DB.pool.QueryRow(ctx, "select created_at from orders where project_id = $1 and id = $2 and ($3::uuid is null or connection_id = $3)",
		q.ProjectID, q.Marker, orNullID(q.ConnectionID)).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, apperr.Malformed("marker", "the id of an order of this list", q.Marker.String())
	}
	return at, classify(err)
}

func scanListed(row pgx.CollectableRow) (l domain.ListedOrder, err error) {
	err = row.Scan(&l.ID, &l.ProjectID, &l.Spec, &l.Status, &l.Problem, &l.CreatedAt, &l.ConnectionID, &l.Busy)
	l.CreatedAt = l.CreatedAt.UTC()
	return l, err
}

// fill gives the orders their instances.
func (o Orders) fill(ctx context.Context, projectID string, orders []domain.ListedOrder) error {
	ids := make([]uuid.UUID, len(orders))
	at := make(map[uuid.UUID]*domain.Order, len(orders))
	for n := range orders {
		ids[n] = orders[n].ID
		at[ids[n]] = &orders[n].Order
	}
	rows, _ := o.DB.pool.Query(ctx, instancesOfOrdersSQL, projectID, ids)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Instance])
	for _, i := range found {
		at[i.OrderID].Instances = append(at[i.OrderID].Instances, i)
	}
	return classify(err)
}
