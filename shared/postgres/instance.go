package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Instances are the tracked servers.
type Instances struct{ DB *DB }

// instanceColumns are the columns of a domain.Instance.
const instanceColumns = `
id, project_id, order_id, name, coalesce(server_id, '') as server_id, state, raw_status, problem, updated_at, origin,
spec, addresses, key_name, key_fingerprint, seq, seen_at, missed_at, connection_id, remote, lease_id,
disconnected_at, created_at, nova_at, delete_tries, delete_tried_at, volumes_set_at, port_groups, floating_ip,
null::uuid as call_id`

// changeInstanceSQL writes what is known of an instance, and its event, in one statement. It writes nothing when that
// is not new, when something newer is known, when the instance is deleted, or when another instance has its server.
// With a claim ($13) it writes only if no one has claimed the instance's order since. It always writes what is known of
// the create call ($14), which does not change. The actor is $16, and with a claim who placed the order. $17 is another
// size of the server; null = the same.
const changeInstanceSQL = `
with call as (
    update create_calls set server_id = nullif($3, ''), ended_at = clock_timestamp()
    where project_id = $1 and id = $14 and server_id is null
), before as (
    select i.* from instances i
    where i.project_id = $1 and i.id = $2 and i.state <> 'deleted'
      and (i.server_id is null or i.server_id = $3)
      and ($13::uuid is null or exists (
          select from orders o where o.project_id = $1 and o.id = i.order_id and o.claim_id = $13))
      and not exists (select from instances other
                      where other.project_id = $1 and other.server_id = $3 and other.id <> $2)
    for update
), news as (
    select b.*, b.disconnected_at is null
        and (b.state <> $5 or b.raw_status <> $6 or b.name <> $4 or b.addresses <> $8
            or b.problem is distinct from $7) as is_news
    from before b
    where coalesce(b.seen_at, '-infinity') <= coalesce($12, clock_timestamp())
), after as (
    update instances i
    set server_id = nullif($3, ''), name = $4, state = $5, raw_status = $6, problem = $7, addresses = $8,
        key_name = $9, key_fingerprint = case when $10 = '' then i.key_fingerprint else $10 end,
        missed_at = $11, seen_at = coalesce($12, clock_timestamp()), nova_at = greatest(i.nova_at, $15),
        spec = i.spec || coalesce($17::jsonb, '{}'),
        seq = i.seq + n.is_news::int, updated_at = case when n.is_news then clock_timestamp() else i.updated_at end
    from news n
    where i.project_id = n.project_id and i.id = n.id
    returning i.*, n.state as previous_state, n.is_news,
        coalesce($16::jsonb, case when $13::uuid is not null then
            (select o.actor || jsonb_build_object('order_id', o.id) from orders o
             where o.project_id = $1 and o.id = i.order_id) end) as actor
), event as (` + instanceEventSQL + ` after where is_news)
select count(*) filter (where is_news) from after`

// instanceEventSQL writes an event of instances, from rows of them with previous_state and actor.
const instanceEventSQL = `
    insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
    select project_id, id::text, seq, '` + domain.InstanceEvent + `', updated_at, order_id, connection_id,
           ` + instanceData + ` from`

// instanceData is the data of an instance's event, from a row of instances with previous_state and actor.
const instanceData = `jsonb_strip_nulls(jsonb_build_object(
        'instance_id', id, 'server_id', server_id, 'name', name, 'state', state, 'previous_state', previous_state,
        'status', nullif(raw_status, ''), 'addresses', addresses, 'key_name', nullif(key_name, ''),
        'key_fingerprint', nullif(key_fingerprint, ''), 'order_id', order_id, 'connection_id', connection_id,
        'lease_id', lease_id,
        'disconnected', case when disconnected_at is not null then true end, 'fault', problem,
        'actor', actor))`

// passSQL writes a state that an instance only passed through, with its event, unless the instance was written since it
// was read: then another replica has written this state, or a later one.
const passSQL = `
with before as (
    select i.* from instances i
    where i.project_id = $1 and i.id = $2 and i.server_id = $3 and i.seq = $4 and i.state not in ('deleted', $5)
      and i.disconnected_at is null and coalesce(i.seen_at, '-infinity') <= $7
    for update
), after as (
    update instances i
    set state = $5, raw_status = $6, problem = null, seq = i.seq + 1, updated_at = clock_timestamp()
    from before b where i.project_id = b.project_id and i.id = b.id
    returning i.*, b.state as previous_state, null::jsonb as actor
)
insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
select project_id, id::text, seq, '` + domain.InstanceEvent + `', updated_at, order_id, connection_id,
       ` + instanceData + ` || jsonb_build_object('reconstructed', true,
           'changed_at', to_char($8::timestamptz at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
from after`

// Now is the database's time.
func (i Instances) Now(ctx context.Context) (time.Time, error) { return i.DB.Now(ctx) }

// Change writes what is known of instances, each with its event when that is news, in one transaction. published is how
// many events it has written. The ProjectID, ID, ServerID, Name, State, RawStatus, Problem, Addresses, KeyName,
// KeyFingerprint, MissedAt, SeenAt and CallID of each count, and the Spec's flavor and image if IsOtherSize; a zero
// SeenAt is now. What was known since a later moment stays, and so does a deleted instance. The events have the
// context's actor.
func (i Instances) Change(ctx context.Context, known []domain.Instance) (published int, err error) {
	return i.ChangeAfter(ctx, known, nil)
}

// ChangeAfter is Change, but first it writes the states that instances passed through between two reads, in their
// order. Seq is that of the instance as it was read.
func (i Instances) ChangeAfter(
	ctx context.Context, known []domain.Instance, passed map[string][]domain.PassedState,
) (published int, err error) {
	// In one order, so that two replicas that change the same instances do not wait for each other.
	known = slices.SortedFunc(slices.Values(known), func(a, b domain.Instance) int {
		return cmp.Compare(a.ID.String(), b.ID.String())
	})
	return changeValue(ctx, i.DB, func(tx pgx.Tx) (int, error) { return changeAll(ctx, tx, known, passed) })
}

func changeAll(
	ctx context.Context, tx pgx.Tx, known []domain.Instance, passed map[string][]domain.PassedState,
) (published int, err error) {
	batch := &pgx.Batch{}
	for _, k := range known {
		for n, p := range passed[k.ServerID] {
			pass := batch.Queue(passSQL, k.ProjectID, k.ID, k.ServerID, k.Seq+int64(n), p.State, p.Status, k.SeenAt,
				p.At)
			pass.Exec(func(tag pgconn.CommandTag) error {
				published += int(tag.RowsAffected())
				return nil
			})
		}
		queueChange(batch, k, uuid.NullUUID{}, domain.ActorFrom(ctx)).QueryRow(func(row pgx.Row) error {
			var n int
			err := row.Scan(&n)
			published += n
			return err
		})
	}
	err = tx.SendBatch(ctx, batch).Close()
	return published, err
}

func queueChange(
	batch *pgx.Batch, k domain.Instance, claim uuid.NullUUID, actor *domain.Actor,
) *pgx.QueuedQuery {
	return batch.Queue(changeInstanceSQL, changeArgs(k, claim, actor)...)
}

func changeArgs(k domain.Instance, claim uuid.NullUUID, actor *domain.Actor) []any {
	var size any
	if k.IsOtherSize {
		size = sizeOf(k.Spec)
	}
	return []any{
		k.ProjectID, k.ID, k.ServerID, k.Name, k.State, k.RawStatus, k.Problem, orEmpty(k.Addresses), k.KeyName,
		k.KeyFingerprint, orNull(k.MissedAt), orNull(k.SeenAt), claim, orNullID(k.CallID), orNull(k.NovaAt), actor,
		size,
	}
}

// RecordDeleteAttempt counts a call to delete the instance's server that Nova took or refused. Attempts from before
// since no longer count.
func (i Instances) RecordDeleteAttempt(ctx context.Context, tried domain.Instance, since time.Time) error {
	_, err := exec(ctx, i.DB.pool, `
update instances
set delete_tries = case when delete_tried_at >= $3 then delete_tries + 1 else 1 end, delete_tried_at = clock_timestamp()
where project_id = $1 and id = $2`, tried.ProjectID, tried.ID, since)
	return err
}

const (
	trackedColumns = "coalesce(server_id, '') as server_id, id, state, origin, connection_id, lease_id"

	trackedSQL = `
select ` + trackedColumns + ` from instances
where project_id = $1 and disconnected_at is null and not remote and server_id = any($2)`

	listTrackedSQL = `
select ` + trackedColumns + ` from instances
where project_id = $1 and disconnected_at is null and not remote and server_id is not null and state <> 'deleted'
  and ($2 = '' or (created_at, id) < (select created_at, id from instances where project_id = $1 and server_id = $2))
order by created_at desc, id desc limit $3`

	listManagedSQL = `
select ` + instanceColumns + ` from instances
where project_id = $1 and connection_id = $2 and disconnected_at is null and server_id is not null
  and state <> 'deleted'
  and ($3 = '' or (created_at, id) < (select created_at, id from instances
                                      where project_id = $1 and connection_id = $2 and server_id = $3))
order by created_at desc, id desc limit $4`

	findInstancesSQL = `
select ` + instanceColumns + ` from instances
where project_id = $1 and ($2::uuid is null and not remote or connection_id = $2) and disconnected_at is null
  and (server_id = any($3) or id = any($3::text[]::uuid[]))`
)

// ListTracked lists a page of the project's tracked servers, the newest instance first. marker is the id of the last
// server of the previous page ("" = none). A marker that no instance has or had is Invalid.
func (i Instances) ListTracked(
	ctx context.Context, projectID, marker string, limit int,
) ([]domain.Tracked, error) {
	found, err := queryAll[domain.Tracked](ctx, i.DB.pool, listTrackedSQL, projectID, marker, limit)
	if err != nil || len(found) > 0 || marker == "" {
		return found, err
	}
	known, err := queryValue[bool](ctx, i.DB.pool,
		"select exists (select from instances where project_id = $1 and server_id = $2)", projectID, marker)
	if err == nil && !known {
		return nil, apperr.Malformed("marker", "the id of a tracked server, as in the answer's next", marker)
	}
	return nil, err
}

// Tracked finds which of the project's servers are tracked, by server id.
func (i Instances) Tracked(
	ctx context.Context, projectID string, serverIDs []string,
) (map[string]domain.Tracked, error) {
	found, err := queryAll[domain.Tracked](ctx, i.DB.pool, trackedSQL, projectID, serverIDs)
	if err != nil {
		return nil, err
	}
	tracked := make(map[string]domain.Tracked, len(found))
	for _, t := range found {
		tracked[t.ServerID] = t
	}
	return tracked, nil
}

// ListManaged lists a page of the instances with a server that are managed through the connection, the newest first, as
// they were last observed. marker is the id of the last server of the previous page ("" = none).
func (i Instances) ListManaged(
	ctx context.Context, filter domain.Filter, limit int, marker string,
) ([]domain.Instance, error) {
	return queryAll[domain.Instance](ctx, i.DB.pool, listManagedSQL, filter.ProjectID, filter.ConnectionID, marker,
		limit)
}

// Addresses reads the addresses that instances which run had when they were observed last, by the instances' ids.
func (i Instances) Addresses(
	ctx context.Context, projectID string, ids []uuid.UUID,
) (map[uuid.UUID][]domain.Address, error) {
	type row struct {
		ID        uuid.UUID
		Addresses []domain.Address
	}
	found, err := queryAll[row](ctx, i.DB.pool, `
select id, addresses from instances where project_id = $1 and id = any($2) and state = 'active'`, projectID, ids)
	all := make(map[uuid.UUID][]domain.Address, len(found))
	for _, one := range found {
		all[one.ID] = one.Addresses
	}
	return all, err
}

// Find finds instances by their own ids or their servers', which are UUIDs, in the order of ids. One that is not found
// has the zero ID. A filter without a connection matches instances in this cloud; with a connection those that are
// managed through it, in any cloud.
func (i Instances) Find(ctx context.Context, filter domain.Filter, ids []string) ([]domain.Instance, error) {
	all, err := queryAll[domain.Instance](ctx, i.DB.pool, findInstancesSQL, filter.ProjectID,
		orNullID(filter.ConnectionID), ids)
	if err != nil {
		return nil, err
	}
	found := make([]domain.Instance, len(ids))
	for n, id := range ids { // a server's id goes first, if someone gave one to another server's instance
		for _, one := range all {
			if one.ServerID == id || one.ID.String() == id && found[n].ID == uuid.Nil {
				found[n] = one
			}
		}
	}
	return found, nil
}

const agentSQL = `
select id as deployment_id, image, created_at as deployed_at, ready_at from deployments
where project_id = $1 and instance_id = $2 order by created_at desc limit 1`

// Agent is what was last deployed to the instance; nil when nothing was.
func (i Instances) Agent(ctx context.Context, projectID string, instance uuid.UUID) (*domain.Agent, error) {
	agent, found, err := queryFound[domain.Agent](ctx, i.DB.pool, agentSQL, projectID, instance)
	if err != nil || !found {
		return nil, err
	}
	return &agent, nil
}

// Users of a connection see no other actors of its project.
const historySQL = `
select e.project_id, e.subject, e.seq, e.type, e.at,
       (case when e.project_id = $5 or e.data #>> '{actor,project_id}' = $5
             then e.data else e.data - 'actor' end)::text as data
from events e
where e.project_id = $1 and e.subject = $2::text and e.data->>'instance_id' = $2::text
  and ($3::uuid is null or e.connection_id = $3) and ($4::bigint = 0 or e.seq < $4)
order by e.seq desc limit $6`

// History reads the events of an instance that are still kept, the newest first: those before a number (0 = all), and
// with a connection (not the zero id) only those of the connection. reader is the reader's project.
func (i Instances) History(
	ctx context.Context, projectID string, instance, connection uuid.UUID, before int64, limit int, reader string,
) ([]domain.Event, error) {
	return queryAll[domain.Event](ctx, i.DB.pool, historySQL, projectID, instance.String(), orNullID(connection),
		before, reader, limit)
}
