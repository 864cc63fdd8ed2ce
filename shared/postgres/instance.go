package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Instances are the tracked servers.
type Instances struct{ DB *DB }

// instanceColumns are the columns of a domain.Instance, in the order of its fields.
const instanceColumns = `
id, project_id, order_id, name, coalesce(server_id, '') as server_id, state, raw_status, problem, updated_at, origin, spec, addresses,
key_name, key_fingerprint, seq, seen_at, missed_at, connection_id, remote, disconnected_at, created_at, nova_at, delete_tries,
delete_tried_at, null::uuid as call_id`

// changeInstanceSQL writes what is known of an instance, and its event, in one statement. It writes nothing when that
// is nothing new, when something newer is known already, when the instance is gone, or when its server is another
// one's. With a claim ($13) it writes only if nobody has claimed the instance's order since. What is known of the
// create call ($14) it writes in any case: that does not change. The actor is $16, and with a claim who placed the
// order.
const changeInstanceSQL = `
with call as (
    update create_calls set server_id = nullif($3, ''), ended_at = clock_timestamp() where project_id = $1 and id = $14 and server_id is null
), before as (
    select i.* from instances i
    where i.project_id = $1 and i.id = $2 and i.state <> 'deleted'
      and (i.server_id is null or i.server_id = $3)
      and ($13::uuid is null or exists (
          select from orders o where o.project_id = $1 and o.id = i.order_id and o.claim_id = $13))
      and not exists (select from instances other where other.project_id = $1 and other.server_id = $3 and other.id <> $2)
    for update
), news as (
    select b.*, b.disconnected_at is null and (b.state <> $5 or b.raw_status <> $6 or b.addresses <> $8 or b.problem is distinct from $7) as is_news
    from before b
    where coalesce(b.seen_at, '-infinity') <= coalesce($12, clock_timestamp())
), after as (
    update instances i
    set server_id = nullif($3, ''), name = $4, state = $5, raw_status = $6, problem = $7, addresses = $8,
        key_name = $9, key_fingerprint = case when $10 = '' then i.key_fingerprint else $10 end,
        missed_at = $11, seen_at = coalesce($12, clock_timestamp()), nova_at = greatest(i.nova_at, $15),
        seq = i.seq + n.is_news::int, updated_at = case when n.is_news then clock_timestamp() else i.updated_at end
    from news n
    where i.project_id = n.project_id and i.id = n.id
    returning i.*, n.state as previous_state, n.is_news, coalesce($16::jsonb, case when $13::uuid is not null then
        (select o.actor || jsonb_build_object('order_id', o.id) from orders o where o.project_id = $1 and o.id = i.order_id) end) as actor
), event as (
    insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
    select project_id, id::text, seq, '` + domain.InstanceEvent + `', updated_at, order_id, connection_id, ` + instanceData + `
    from after where is_news
)
select count(*) filter (where is_news) from after`

// instanceData is the data of an instance's event, from a row of instances with previous_state and actor.
const instanceData = `jsonb_strip_nulls(jsonb_build_object(
        'instance_id', id, 'server_id', server_id, 'name', name, 'state', state, 'previous_state', previous_state,
        'status', nullif(raw_status, ''), 'addresses', addresses, 'key_name', nullif(key_name, ''),
        'key_fingerprint', nullif(key_fingerprint, ''), 'order_id', order_id, 'connection_id', connection_id,
        'disconnected', case when disconnected_at is not null then true end, 'fault', problem,
        'actor', actor))`

// Change writes what is known of instances, each with its event when that is news, in one transaction. published is how many
// events there are. The ProjectID, ID, ServerID, Name, State, RawStatus, Problem, Addresses, KeyName, KeyFingerprint,
// MissedAt, SeenAt and CallID of each count; a zero SeenAt is now. What was known since a later moment stays, and so
// does a deleted instance. The events have the context's actor.
func (i Instances) Change(ctx context.Context, known []domain.Instance) (published int, err error) {
	return i.ChangeAfter(ctx, known, nil)
}

// DeleteTried counts a call to delete the instance's server that Nova took or refused. Tries from before a moment count
// no more.
func (i Instances) DeleteTried(ctx context.Context, tried domain.Instance, since time.Time) error {
	_, err := i.DB.pool.Exec(ctx, `
update instances set delete_tries = case when delete_tried_at >= $3 then delete_tries + 1 else 1 end, delete_tried_at = clock_timestamp()
where project_id = $1 and id = $2`, tried.ProjectID, tried.ID, since)
	return classify(err)
}

// inOrder sorts instances, so that two replicas that change the same ones do not wait for each other.
func inOrder(known []domain.Instance) []domain.Instance {
	return slices.SortedFunc(slices.Values(known), func(a, b domain.Instance) int { return cmp.Compare(a.ID.String(), b.ID.String()) })
}

func changeAll(ctx context.Context, tx pgx.Tx, known []domain.Instance) (published int, err error) {
	return changeAllAfter(ctx, tx, known, nil)
}

func queueChange(batch *pgx.Batch, k domain.Instance, claim uuid.NullUUID, actor *domain.Actor) *pgx.QueuedQuery {
	return batch.Queue(changeInstanceSQL, k.ProjectID, k.ID, k.ServerID, k.Name, k.State, k.RawStatus, k.Problem, addressesOf(k),
		k.KeyName, k.KeyFingerprint, orNull(k.MissedAt), orNull(k.SeenAt), claim, orNullID(k.CallID), orNull(k.NovaAt), actor)
}

func addressesOf(i domain.Instance) []domain.Address {
	if i.Addresses == nil {
		return []domain.Address{}
	}
	return i.Addresses
}
