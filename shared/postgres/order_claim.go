package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// orderClaimed is the condition that the claim $3 on the order o with the key ($1, $2) has not expired.
const orderClaimed = "o.project_id = $1 and o.id = $2 and o.claim_id = $3 and o.claimed_until > clock_timestamp()"

// usableConnection is the condition that the order o has no connection, or one that is active and not suspended.
const usableConnection = `(o.connection_id is null or exists (
          select from connections c where c.id = o.connection_id and c.status = 'active' and c.suspended_at is null))`

const (
	renewOrderSQL = `
update orders o set claimed_until = clock_timestamp() + $4::interval
where ` + orderClaimed + ` and ` + usableConnection

	fingerprintSQL = `
update instances i set key_fingerprint = $4 from orders o
where ` + orderClaimed + ` and i.project_id = o.project_id and i.order_id = o.id`

	volumesSetSQL = `
update instances i set volumes_set_at = clock_timestamp() from orders o
where ` + orderClaimed + ` and i.project_id = o.project_id and i.order_id = o.id and i.id = $4`

	recordGroupsSQL = `
update instances i set port_groups = $5 from orders o
where ` + orderClaimed + ` and i.project_id = o.project_id and i.order_id = o.id and i.id = $4`

	updateSpecSQL = `
update instances i set spec = $4, key_name = $5, key_fingerprint = $6 from orders o
where ` + orderClaimed + ` and i.project_id = o.project_id and i.order_id = o.id and i.id = $7`
)

// Renew prolongs the claim from now on. It is domain.ErrFenced when the claim has expired, and when the order's
// connection has ended or is suspended.
func (o Orders) Renew(ctx context.Context, order domain.Order, claim domain.Claim, claimFor time.Duration) error {
	return fenced(exec(ctx, o.DB.pool, renewOrderSQL, order.ProjectID, order.ID, claim.ID, claimFor))
}

// Release ends the claim, so that the next replica need not wait for it to expire.
func (o Orders) Release(ctx context.Context, order domain.Order, claim domain.Claim) error {
	_, err := exec(ctx, o.DB.pool, "update orders set "+due.ReleaseSQL+
		" where project_id = $1 and id = $2 and claim_id = $3", order.ProjectID, order.ID, claim.ID)
	return err
}

// ClaimExpiresIn is how long the claim of the replica that works on the order holds, unless it is renewed; 0 = no
// replica works on it.
func (o Orders) ClaimExpiresIn(ctx context.Context, projectID string, id uuid.UUID) (time.Duration, error) {
	return queryValue[time.Duration](ctx, o.DB.pool, `
select greatest(coalesce(claimed_until - clock_timestamp(), interval '0'), interval '0')
from orders where project_id = $1 and id = $2`, projectID, id)
}

// Now is the database's clock.
func (o Orders) Now(ctx context.Context) (time.Time, error) { return o.DB.Now(ctx) }

// RecordFingerprint writes the fingerprint of the key pair that was made for the order to all of its instances. It is
// domain.ErrFenced when the claim has expired.
func (o Orders) RecordFingerprint(
	ctx context.Context, order domain.Order, claim domain.Claim, fingerprint string,
) error {
	return fenced(exec(ctx, o.DB.pool, fingerprintSQL, order.ProjectID, order.ID, claim.ID, fingerprint))
}

// RecordVolumes writes that the volumes of an instance of the order are set. It is domain.ErrFenced when the claim has
// expired.
func (o Orders) RecordVolumes(ctx context.Context, order domain.Order, claim domain.Claim, instance uuid.UUID) error {
	return fenced(exec(ctx, o.DB.pool, volumesSetSQL, order.ProjectID, order.ID, claim.ID, instance))
}

// RecordGroups writes the outcome of domain.StepGroups. It is domain.ErrFenced when the claim has expired.
func (o Orders) RecordGroups(
	ctx context.Context, order domain.Order, claim domain.Claim, instance uuid.UUID, g domain.PortGroups,
) error {
	return fenced(exec(ctx, o.DB.pool, recordGroupsSQL, order.ProjectID, order.ID, claim.ID, instance, g))
}

// UpdateSpecs writes the Spec, KeyName and KeyFingerprint of an order's instances, now that the names in the specs are
// resolved. It is domain.ErrFenced when the claim has expired.
func (o Orders) UpdateSpecs(ctx context.Context, order domain.Order, claim domain.Claim) error {
	return o.DB.change(ctx, func(tx pgx.Tx) error {
		for _, i := range order.Instances {
			err := fenced(exec(ctx, tx, updateSpecSQL, order.ProjectID, order.ID, claim.ID, i.Spec, i.KeyName,
				i.KeyFingerprint, i.ID))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Decide writes what Nova said to one instance. It is domain.ErrFenced when another replica has claimed the order
// since, unless the same server is written down already.
func (o Orders) Decide(ctx context.Context, claim domain.Claim, i domain.Instance) error {
	fence := uuid.NullUUID{UUID: claim.ID, Valid: true}
	written, err := write(ctx, o.DB, queryValue[int], changeInstanceSQL, changeArgs(i, fence, nil)...)
	if err != nil || written == 1 {
		return err
	}
	isSame, err := queryValue[bool](ctx, o.DB.pool, `
select coalesce(i.server_id, '') = $4 and o.claim_id = $3
from instances i join orders o on o.project_id = i.project_id and o.id = i.order_id
where i.project_id = $1 and i.id = $2`, i.ProjectID, i.ID, claim.ID, i.ServerID)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !isSame {
		return domain.ErrFenced
	}
	return err
}

const finalizeSQL = `
with before as (
    select * from orders where project_id = $1 and id = $2 and status = 'running' for update
), after as (
    update orders o
    set status = $3, problem = $4, payload = null, seq = o.seq + 1, updated_at = clock_timestamp()
    from before b where o.project_id = b.project_id and o.id = b.id and $3 <> 'running'
    returning o.*
)
insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
select project_id, id::text, seq, '` + domain.OrderEvent + `', updated_at, id, connection_id, $5::jsonb
from after`

// orderActor is who placed the order of this id in the project $1, as the actor of what the order does.
func orderActor(id string) string {
	return "(select o.actor || jsonb_build_object('order_id', o.id) from orders o where o.project_id = $1 and o.id = " +
		id + ")"
}

// Finalize writes the order's final status and Problem, with their event. A final status is never changed. The event
// has no actor: what came of the order is Nova's doing.
func (o Orders) Finalize(ctx context.Context, order domain.Order) error {
	final := domain.OrderEventData{
		OrderID: order.ID, Status: order.Status, PreviousStatus: domain.OrderRunning, Fault: order.Problem,
	}
	_, err := write(ctx, o.DB, exec, finalizeSQL, order.ProjectID, order.ID, order.Status, order.Problem, final)
	return err
}

func noOrder(id uuid.UUID) error { return apperr.New(apperr.NotFound, "there is no order %s", id) }

// The claim is renewed by the same statement. A call begins only while the instance is undecided and no other call is
// open.
const beginCallSQL = `
with claimed as (
    update orders o set claimed_until = clock_timestamp() + $4::interval
    where ` + orderClaimed + ` and ` + usableConnection + `
    returning project_id
), begun as (
    insert into create_calls (project_id, id, instance_id, name, user_id, began_at, until)
    select $1, $5, $6, $7, $8, clock_timestamp(), clock_timestamp() + $9::interval from claimed
    where exists (select from instances i
                  where i.project_id = $1 and i.id = $6 and i.server_id is null and i.problem is null)
      and not exists (select from create_calls c
                      where c.project_id = $1 and c.instance_id = $6 and c.ended_at is null
                        and c.until > clock_timestamp())
    returning id
)
select (select count(*) from claimed) as claimed, (select count(*) from begun) as begun`

const (
	endCallSQL = `
update create_calls set ended_at = clock_timestamp() where project_id = $1 and id = $2 and ended_at is null`

	// A server that is tracked as another instance is not a duplicate.
	markDuplicateSQL = `
update create_calls c set server_id = $4, ended_at = clock_timestamp()
from orders o
where o.project_id = $1 and o.id = $2 and o.status = 'running'
  and c.project_id = $1 and c.id = $3 and (c.server_id = $4 or c.server_id is null and c.ended_at is null)
  and not exists (select from instances i where i.project_id = $1 and i.server_id = $4)`

	// The primary key makes it one event. A disconnected instance gets no event.
	publishUnexpectedSQL = `
with unexpected as (
    insert into unexpected_servers (project_id, instance_id, server_id, name, told_at)
    select i.project_id, i.id, $3, $4, clock_timestamp() from instances i
    where i.project_id = $1 and i.id = $2 and i.disconnected_at is null
      and not exists (select from instances other where other.project_id = $1 and other.server_id = $3)
    on conflict do nothing
    returning project_id, instance_id, server_id, name, told_at
), row as (
    update instances i set seq = seq + 1 from unexpected u where i.project_id = u.project_id and i.id = u.instance_id
    returning i.*, u.server_id as unexpected_id, u.name as unexpected_name, u.told_at
)
insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
select project_id, id::text, seq, '` + domain.UnexpectedServerEvent + `', told_at, order_id, connection_id,
       jsonb_strip_nulls(jsonb_build_object(
           'instance_id', id, 'server_id', server_id, 'order_id', order_id, 'connection_id', connection_id,
           'unexpected_server_id', unexpected_id, 'unexpected_server_name', unexpected_name))
from row`
)

// BeginCall records that a create call is about to be sent, and prolongs the claim by claimFor from now on. While the
// call has no answer, no other one may begin for fence. It is domain.ErrFenced when the claim has expired or the
// order's connection has ended, and domain.ErrCallOpen when an earlier call is open or the instance is decided.
func (o Orders) BeginCall(
	ctx context.Context, order domain.Order, claim domain.Claim, call domain.CreateCall, claimFor, fence time.Duration,
) error {
	written, err := queryOne[struct{ Claimed, Begun int }](ctx, o.DB.pool, beginCallSQL, order.ProjectID, order.ID,
		claim.ID, claimFor, call.ID, call.InstanceID, call.Name, call.UserID, fence)
	switch {
	case err != nil:
		return err
	case written.Claimed == 0:
		return domain.ErrFenced
	case written.Begun == 0:
		return domain.ErrCallOpen
	}
	return nil
}

// EndCall records that a create call has made no server.
func (o Orders) EndCall(ctx context.Context, order domain.Order, call domain.CreateCall) error {
	_, err := exec(ctx, o.DB.pool, endCallSQL, order.ProjectID, call.ID)
	return err
}

// MarkDuplicate records that a create call made the server, which is about to be deleted because its instance has
// another one. It is false when the order is final, or the call made another server.
func (o Orders) MarkDuplicate(
	ctx context.Context, order domain.Order, call domain.CreateCall, serverID string,
) (bool, error) {
	n, err := exec(ctx, o.DB.pool, markDuplicateSQL, order.ProjectID, order.ID, call.ID, serverID)
	return n == 1, err
}

// PublishUnexpected writes an event about a server that carries the instance's tags and is not its own: once for each
// server.
func (o Orders) PublishUnexpected(
	ctx context.Context, i domain.Instance, s domain.Server,
) (published bool, err error) {
	n, err := write(ctx, o.DB, exec, publishUnexpectedSQL, i.ProjectID, i.ID, s.ID, s.Name)
	return n == 1, err
}
