package postgres

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// deliveryColumns are what their owners see of deliveries d and their events e.
const deliveryColumns = `
d.id, d.callback_id, d.subject || ':' || d.event_seq, e.type, d.subject, d.status, d.attempts, coalesce(d.answer, 0), d.error,
d.created_at, coalesce(d.attempted_at, '0001-01-01')`

func scanDelivery(row pgx.CollectableRow) (d domain.Delivery, err error) {
	err = row.Scan(&d.ID, &d.CallbackID, &d.EventID, &d.EventType, &d.Subject, &d.Status, &d.Attempts, &d.Answer, &d.Error, &d.CreatedAt, &d.AttemptedAt)
	d.CreatedAt, d.AttemptedAt = d.CreatedAt.UTC(), d.AttemptedAt.UTC()
	return d, err
}

const (
	callbackAndMarkerSQL = `
select c.id, d.id from callbacks c left join deliveries d on d.project_id = $1 and d.callback_id = c.id and d.id = $3
where c.project_id = $1 and c.id = $2`

	deliveriesSQL = `
select ` + deliveryColumns + `
from deliveries d join events e on e.project_id = d.event_project and e.subject = d.subject and e.seq = d.event_seq
where d.project_id = $1 and d.callback_id = $2 and ($3 = '' or d.status = $3)
  and ($4::uuid is null or (d.created_at, d.id) < (select m.created_at, m.id from deliveries m where m.project_id = $1 and m.id = $4))
order by d.created_at desc, d.id desc limit $5`
)

// Deliveries reads a page of a callback's deliveries.
func (c Callbacks) Deliveries(ctx context.Context, projectID string, id uuid.UUID, q domain.DeliveryQuery) ([]domain.Delivery, error) {
	var known uuid.UUID
	var marker uuid.NullUUID
	err := c.DB.pool.QueryRow(ctx, callbackAndMarkerSQL, projectID, id, q.Marker).Scan(&known, &marker)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, noCallback(id)
	case err != nil:
		return nil, classify(err)
	case q.Marker != uuid.Nil && !marker.Valid:
		return nil, apperr.Malformed("marker", "the id of a delivery of this callback that is still kept", q.Marker.String())
	}
	rows, _ := c.DB.pool.Query(ctx, deliveriesSQL, projectID, id, q.Status, marker, q.Limit)
	found, err := pgx.CollectRows(rows, scanDelivery)
	return found, classify(err)
}

// A delivery that is made by hand has a stream of its own, so that it waits for no other.
const deliverAloneSQL = `
delivery as (
    insert into deliveries (project_id, id, callback_id, stream, seq, event_project, subject, event_seq, created_at)
    select project_id, $3, callback_id, stream, 1, event_project, subject, event_seq, clock_timestamp() from alone
    returning *
), stream as (
    insert into streams (project_id, callback_id, stream, head, tail, next_at)
    select project_id, callback_id, stream, 0, 1, clock_timestamp() from alone
)
select ` + deliveryColumns + ` from delivery d, alone e`

const testSQL = `
with callback as (
    update callbacks set seq = seq + 1 where project_id = $1 and id = $2 and status <> 'gone' returning *
), event as (
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, id::text, seq, '` + domain.CallbackTestEvent + `', clock_timestamp(), jsonb_build_object('callback_id', id, 'status', status)
    from callback
    returning *
), alone as (
    select e.project_id, c.id as callback_id, 'test/' || $3::uuid as stream, e.project_id as event_project, e.subject, e.seq as event_seq, e.type
    from callback c, event e
), ` + deliverAloneSQL

// Test makes an event for this callback only, and its delivery.
func (c Callbacks) Test(ctx context.Context, projectID string, id uuid.UUID) (domain.Delivery, error) {
	return c.alone(ctx, projectID, id, uuid.Nil, testSQL, projectID, id, uuid.New())
}

// The event is not locked, which the role of functions that serve HTTP may not: should it be deleted for its age meanwhile,
// the foreign key says so.
const redeliverSQL = `
with old as (
    select d.*, e.type from deliveries d
    join callbacks c on c.project_id = d.project_id and c.id = d.callback_id
    join events e on e.project_id = d.event_project and e.subject = d.subject and e.seq = d.event_seq
    where d.project_id = $1 and d.callback_id = $2 and d.id = $4 and d.status <> 'due' and c.status <> 'gone'
    for key share of c
), alone as (
    select project_id, callback_id, 'redelivery/' || $3::uuid as stream, event_project, subject, event_seq, type from old
), ` + deliverAloneSQL

// Redeliver makes another delivery of the event of one that has ended. The event's id stays the same.
func (c Callbacks) Redeliver(ctx context.Context, projectID string, id, delivery uuid.UUID) (domain.Delivery, error) {
	return c.alone(ctx, projectID, id, delivery, redeliverSQL, projectID, id, uuid.New(), delivery)
}

// alone makes a delivery by hand, or finds out why there can be none.
func (c Callbacks) alone(
	ctx context.Context, projectID string, id, delivery uuid.UUID, sql string, args ...any,
) (made domain.Delivery, err error) {
	err = again(func() error {
		rows, _ := c.DB.pool.Query(ctx, sql, args...)
		made, err = pgx.CollectExactlyOneRow(rows, scanDelivery)
		return err
	})
	if !errors.Is(err, pgx.ErrNoRows) && sqlState(err) != "23503" { // foreign_key_violation
		return made, classify(err)
	}
	callback, err := c.Get(ctx, projectID, id)
	switch {
	case err != nil:
		return made, err
	case callback.Status == domain.CallbackGone:
		return made, apperr.New(apperr.Conflict, "the callback is gone: its receiver wants no events")
	}
	var due bool
	err = c.DB.pool.QueryRow(ctx, "select status = 'due' from deliveries where project_id = $1 and callback_id = $2 and id = $3", projectID, id, delivery).Scan(&due)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !due {
		return made, apperr.New(apperr.NotFound, "there is no delivery %s of this callback", delivery)
	}
	if err != nil {
		return made, classify(err)
	}
	return made, apperr.New(apperr.Conflict, "the delivery is still on its way")
}
