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

// deliveryColumns are what owners see of their deliveries d and the events e of these.
const deliveryColumns = `
d.id, d.callback_id, d.subject || ':' || d.event_seq as event_id, e.type as event_type, d.subject, d.status, d.attempts,
coalesce(d.answer, 0) as answer, d.error, d.created_at, d.attempted_at`

const (
	callbackAndMarkerSQL = `
select c.id, d.id from callbacks c left join deliveries d on d.project_id = $1 and d.callback_id = c.id and d.id = $3
where c.project_id = $1 and c.id = $2`

	deliveriesSQL = `
select ` + deliveryColumns + `
from deliveries d join events e on e.project_id = d.event_project and e.subject = d.subject and e.seq = d.event_seq
where d.project_id = $1 and d.callback_id = $2 and ($3 = '' or d.status = $3)
  and ($4::uuid is null or (d.created_at, d.id) < (select m.created_at, m.id from deliveries m where m.project_id = $1
      and m.id = $4))
order by d.created_at desc, d.id desc limit $5`
)

// Deliveries reads a page of a callback's deliveries.
func (c Callbacks) Deliveries(
	ctx context.Context, projectID string, id uuid.UUID, q domain.DeliveryQuery,
) ([]domain.Delivery, error) {
	var known uuid.UUID
	var marker uuid.NullUUID
	err := c.DB.pool.QueryRow(ctx, callbackAndMarkerSQL, projectID, id, q.Marker).Scan(&known, &marker)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, apperr.New(apperr.NotFound, "there is no callback %s", id)
	case err != nil:
		return nil, classify(err)
	case q.Marker != uuid.Nil && !marker.Valid:
		return nil, apperr.Malformed("marker", "the id of a delivery of this callback that is still kept",
			q.Marker.String())
	}
	return queryAll[domain.Delivery](ctx, c.DB.pool, deliveriesSQL, projectID, id, q.Status, marker, q.Limit)
}

// A test or a redelivery has a stream of its own, so that it waits for no other delivery.
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
    select project_id, id::text, seq, '` + domain.CallbackTestEvent + `', clock_timestamp(),
        jsonb_build_object('callback_id', id, 'status', status)
    from callback
    returning *
), alone as (
    select e.project_id, c.id as callback_id, 'test/' || $3::uuid as stream, e.project_id as event_project, e.subject,
        e.seq as event_seq, e.type
    from callback c, event e
), ` + deliverAloneSQL

// Test writes an event for this callback only, and its delivery, which gets the id made. A repeated call with that id
// writes nothing.
func (c Callbacks) Test(ctx context.Context, projectID string, id, made uuid.UUID) (domain.Delivery, error) {
	return c.alone(ctx, projectID, id, uuid.Nil, testSQL, projectID, id, made)
}

// The event is not locked: the role of functions that serve HTTP may not. If retention deletes it now, the foreign key
// fails.
const redeliverSQL = `
with old as (
    select d.*, e.type from deliveries d
    join callbacks c on c.project_id = d.project_id and c.id = d.callback_id
    join events e on e.project_id = d.event_project and e.subject = d.subject and e.seq = d.event_seq
    where d.project_id = $1 and d.callback_id = $2 and d.id = $4 and d.status <> 'due' and c.status <> 'gone'
    for key share of c
), alone as (
    select project_id, callback_id, 'redelivery/' || $3::uuid as stream, event_project, subject, event_seq, type
        from old
), ` + deliverAloneSQL

// Redeliver delivers the event of a delivery that has ended once more, by a delivery that gets the id made. The event's
// id stays the same. A repeated call with the id made writes nothing.
func (c Callbacks) Redeliver(
	ctx context.Context, projectID string, id, delivery, made uuid.UUID,
) (domain.Delivery, error) {
	return c.alone(ctx, projectID, id, delivery, redeliverSQL, projectID, id, made, delivery)
}

const deliverySQL = `
select ` + deliveryColumns + `
from deliveries d join events e on e.project_id = d.event_project and e.subject = d.subject and e.seq = d.event_seq
where d.project_id = $1 and d.callback_id = $2 and d.id = $3`

// Delivery reads a delivery of a callback.
func (c Callbacks) Delivery(ctx context.Context, projectID string, id, delivery uuid.UUID) (domain.Delivery, error) {
	found, err := queryOne[domain.Delivery](ctx, c.DB.pool, deliverySQL, projectID, id, delivery)
	return found, orNotFound(err, "there is no delivery %s of this callback", delivery)
}

// sentData is what a callback gets of an event e by a delivery d of its project. A user who acts through a connection
// must not see its other actors.
const sentData = `
(case when d.project_id in ('', e.project_id) or e.data #>> '{actor,project_id}' = d.project_id
      then e.data else e.data - 'actor' end)::text`

const deliveredEventSQL = `
select ` + deliveryColumns + `, e.project_id as event_project, e.seq as event_seq, e.at as event_at,
` + sentData + ` as event_data
from deliveries d join events e on e.project_id = d.event_project and e.subject = d.subject and e.seq = d.event_seq
where d.project_id = $1 and d.callback_id = $2 and d.id = $3`

// deliveredRow is a row of deliveredEventSQL.
type deliveredRow struct {
	domain.Delivery

	EventProject string
	EventSeq     int64
	EventAt      time.Time
	EventData    []byte
}

// DeliveredEvent reads a delivery of a callback, and the event as its receiver gets it.
func (c Callbacks) DeliveredEvent(
	ctx context.Context, projectID string, id, delivery uuid.UUID,
) (domain.Delivery, domain.Event, error) {
	r, err := queryOne[deliveredRow](ctx, c.DB.pool, deliveredEventSQL, projectID, id, delivery)
	return r.Delivery, domain.Event{
		ProjectID: r.EventProject, Subject: r.Subject, Seq: r.EventSeq, Type: r.EventType, At: r.EventAt,
		Data: r.EventData,
	}, orNotFound(err, "there is no delivery %s of this callback", delivery)
}

// alone makes a delivery in a stream of its own, or finds out why there can be none.
func (c Callbacks) alone(
	ctx context.Context, projectID string, id, delivery uuid.UUID, sql string, args ...any,
) (made domain.Delivery, err error) {
	made, err = write(ctx, c.DB, queryOne[domain.Delivery], sql, args...)
	if sqlState(err) == stateUnique { // an earlier attempt has made it
		return queryOne[domain.Delivery](ctx, c.DB.pool, deliverySQL, projectID, id, args[2])
	}
	if !errors.Is(err, pgx.ErrNoRows) && sqlState(err) != stateForeignKey {
		return made, err
	}
	callback, err := c.Get(ctx, projectID, id)
	switch {
	case err != nil:
		return made, err
	case callback.Status == domain.CallbackGone:
		return made, apperr.New(apperr.Conflict, "the callback is gone: its receiver wants no events")
	}
	due, err := queryValue[bool](ctx, c.DB.pool,
		"select status = 'due' from deliveries where project_id = $1 and callback_id = $2 and id = "+
			"$3", projectID, id, delivery)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !due {
		return made, apperr.New(apperr.NotFound, "there is no delivery %s of this callback", delivery)
	}
	if err != nil {
		return made, err
	}
	return made, apperr.New(apperr.Conflict, "the delivery is still on its way")
}
