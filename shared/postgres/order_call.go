package postgres

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
	err = o.DB.writeEvents(ctx, func(db querier) error {
		n, err := exec(ctx, db, publishUnexpectedSQL, i.ProjectID, i.ID, s.ID, s.Name)
		published = n == 1
		return err
	})
	return published, err
}
