package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// RetentionConfig is how long rows of ended objects are kept.
type RetentionConfig struct {
	// How long an order is kept, and its id stays idempotent, after it is final and all of its instances are deleted.
	Orders time.Duration `env:"ORDERS_RETENTION, default=2160h" min:"24h"`
	// How long an instance is kept after it was deleted or disconnected, with its events, actions and deployments;
	// longer if its order is kept longer.
	Instances time.Duration `env:"INSTANCES_RETENTION, default=2160h" min:"24h"`
	// How long counted hours are kept. GET /v1/stats shows 30 days.
	Stats time.Duration `env:"STATS_RETENTION, default=8784h" min:"744h"`
}

// Retention deletes rows that are older than RetentionConfig keeps them. It covers all projects, because the operator
// decides how long their rows are kept; each statement carries the project of the rows that it deletes.
type Retention struct {
	DB     *DB
	Config RetentionConfig
}

const (
	retentionJob   = "retention"
	retentionClaim = 2 * time.Minute  // after which another replica continues for one that died
	retentionTime  = 20 * time.Second // of one call
	retentionRows  = 2000             // of one transaction, about
)

// Run deletes what is too old, the oldest first, once an hour among all replicas. One call takes retentionTime at most;
// the next one resumes. A replica that dies loses nothing: each transaction deletes whole orders and instances.
func (r Retention) Run(ctx context.Context) error {
	now, err := r.DB.Now(ctx)
	if err != nil {
		return err
	}
	jobs, key := Jobs{r.DB}, domain.HourKey(domain.Slot(now))
	claim, err := jobs.Claim(ctx, retentionJob, key, retentionClaim)
	if err != nil || !claim.Acquired {
		return err
	}
	done, err := r.deleteOld(ctx, time.Now().Add(retentionTime))
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	switch {
	case err != nil:
		return errors.Join(err, jobs.Fail(ctx, retentionJob, key, claim, err))
	case !done:
		return jobs.Release(ctx, retentionJob, key, claim)
	}
	return jobs.Done(ctx, retentionJob, key, claim)
}

// deleteOld is done when nothing too old is left. It stops at the moment given.
func (r Retention) deleteOld(ctx context.Context, until time.Time) (done bool, err error) {
	for _, step := range []func(context.Context, time.Time) (bool, error){
		r.deleteStats, r.deleteInstances,
		r.deleteOrders, r.deleteKeys, r.deleteUnexpected,
	} {
		if done, err = step(ctx, until); err != nil || !done {
			return false, classify(err)
		}
	}
	return true, nil
}

var (
	// An instance has ended when it is deleted, when it is disconnected and counts for no connection's quota, or when
	// Nova never accepted it.
	endedSQL = `(i.state = 'deleted' or i.disconnected_at is not null and i.connection_id is null
       or i.server_id is null and i.problem is not null)
  and not exists (select from actions a where a.project_id = i.project_id and a.instance_id = i.id
      and a.status = 'running')`

	// A page of final orders after the marker ($3 to $5), with how many instances each has, or -1 while not all of them
	// have ended.
	finalOrdersSQL = `
with page as (
    select updated_at, project_id, id from orders
    where status <> 'running' and updated_at < now() - $1::interval and (updated_at, project_id, id) > ($3, $4, $5)
    order by updated_at, project_id, id limit $6
)
select o.*, coalesce(of.n, 0) as instances
from page o left join lateral (
    select case when bool_and(i.updated_at < now() - greatest($1::interval, $2::interval) and ` + endedSQL + `)
        then count(*) else -1 end::int as n
    from instances i where i.project_id = o.project_id and i.order_id = o.id having count(*) > 0
) of on true
order by o.updated_at, o.project_id, o.id`

	// How far the orders were read that are final. The next call continues there, so that orders whose instances live
	// for long keep none of the later ones from being deleted.
	markerSQL     = `select updated_at, project_id, order_id as id, 0 as instances from retention_markers`
	saveMarkerSQL = `
insert into retention_markers as m (one, updated_at, project_id, order_id) values (true, $1, $2, $3)
on conflict (one) do update
set updated_at = excluded.updated_at, project_id = excluded.project_id, order_id = excluded.order_id`
	dropMarkerSQL = `delete from retention_markers`

	// Locking a row rechecks its conditions: an instance that was just connected stays, and so does its order. Claimed
	// orders are skipped.
	lockOrdersSQL = `
with final as materialized (
    select o.project_id, o.id from orders o join unnest($1::text[], $2::uuid[]) as page (project_id, id)
        using (project_id, id)
    where o.status <> 'running' and ` + unclaimed("o") + `
    for update of o skip locked
), ended as materialized (
    select i.project_id, i.id, i.order_id from instances i join final f on f.project_id = i.project_id
        and f.id = i.order_id
    where i.updated_at < now() - $3::interval and ` + endedSQL + ` for update of i skip locked
), gone_orders as materialized (
    select f.project_id, f.id from final f
    where (select count(*) from instances i where i.project_id = f.project_id and i.order_id = f.id)
        = (select count(*) from ended v where v.project_id = f.project_id and v.order_id = f.id)
), gone as materialized (
    select v.project_id, v.id from ended v join gone_orders o on o.project_id = v.project_id and o.id = v.order_id
)`

	lockInstancesSQL = `
with gone as materialized (
    select i.project_id, i.id from instances i
    where i.order_id is null and (i.state = 'deleted' or i.disconnected_at is not null and i.connection_id is null)
      and ` + endedSQL + ` and i.updated_at < now() - $1::interval
    order by i.updated_at limit $2 for update of i skip locked
), gone_orders as materialized (
    select project_id, id from orders where false
)`

	// Events are deleted with their deliveries, by the foreign key, and with the streams of these: if the id is used
	// again, its events begin at one. Deliverers lock a stream before its delivery.
	deleteGoneSQL = `, gone_actions as (
    delete from actions a using gone g where a.project_id = g.project_id
        and a.instance_id = g.id returning a.project_id, a.id
), subjects as (
    select project_id, id::text as subject from gone union all select project_id, id::text from gone_orders
    union all select project_id, id::text from gone_actions
), past as (
    select e.project_id, e.subject, e.seq from events e join subjects s using (project_id, subject)
), streams_of as (
    delete from streams s using (
        select distinct d.project_id, d.callback_id, d.stream
        from deliveries d join past e on d.event_project = e.project_id and d.subject = e.subject
            and d.event_seq = e.seq) d
    where s.project_id = d.project_id and s.callback_id = d.callback_id and s.stream = d.stream
), events_of as (
    delete from events e using past t where e.project_id = t.project_id and e.subject = t.subject and e.seq = t.seq
), deployments_of as (
    delete from deployments d using gone g where d.project_id = g.project_id and d.instance_id = g.id
), instances_of as (
    delete from instances i using gone g where i.project_id = g.project_id and i.id = g.id
), orders_of as (
    delete from orders o using gone_orders g where o.project_id = g.project_id and o.id = g.id
)
select array_agg(project_id), array_agg(id) from (select * from gone union all select * from gone_orders) all_of`

	// Callbacks of what is deleted. Deliverers lock a stream before its callback; so callbacks go last.
	deleteCallbacksSQL = `
delete from callbacks c using unnest($1::text[], $2::uuid[]) as gone (project_id, id)
where coalesce(c.of_project, c.project_id) = gone.project_id and gone.id in (c.instance_id, c.order_id)`
)

// finalOrder is a final order.
type finalOrder struct {
	UpdatedAt time.Time
	ProjectID string
	ID        uuid.UUID
	Instances int // -1 = some have not ended
}

// deleteOrders walks through the final orders, and deletes those whose instances have all ended. It begins where the
// last call stopped.
func (r Retention) deleteOrders(ctx context.Context, until time.Time) (done bool, err error) {
	last, found, err := queryFound[finalOrder](ctx, r.DB.pool, markerSQL)
	if err != nil {
		return false, err
	}
	if !found {
		last.UpdatedAt = time.Unix(0, 0)
	}
	for time.Now().Before(until) {
		page, err := queryAll[finalOrder](ctx, r.DB.pool, finalOrdersSQL,
			r.Config.Orders, r.Config.Instances, last.UpdatedAt, last.ProjectID, last.ID, retentionRows)
		if err != nil {
			return false, err
		}
		age := max(r.Config.Orders, r.Config.Instances)
		for _, chunk := range chunks(page) {
			if _, err := r.deleteGone(ctx, lockOrdersSQL, chunk.projects, chunk.ids, age); err != nil {
				return false, err
			}
		}
		if len(page) < retentionRows {
			_, err := exec(ctx, r.DB.pool, dropMarkerSQL)
			return err == nil, err
		}
		last = page[len(page)-1]
		if _, err := exec(ctx, r.DB.pool, saveMarkerSQL, last.UpdatedAt, last.ProjectID, last.ID); err != nil {
			return false, err
		}
	}
	return false, nil
}

// chunk are orders that one transaction deletes.
type chunk struct {
	projects []string
	ids      []uuid.UUID
	rows     int
}

func chunks(page []finalOrder) (list []chunk) {
	for _, o := range page {
		if o.Instances < 0 {
			continue
		}
		if len(list) == 0 || list[len(list)-1].rows+1+o.Instances > retentionRows {
			list = append(list, chunk{})
		}
		c := &list[len(list)-1]
		c.projects, c.ids, c.rows = append(c.projects, o.ProjectID), append(c.ids, o.ID), c.rows+1+o.Instances
	}
	return list
}

// deleteInstances deletes instances that came from no order.
func (r Retention) deleteInstances(ctx context.Context, until time.Time) (done bool, err error) {
	for time.Now().Before(until) {
		n, err := r.deleteGone(ctx, lockInstancesSQL, r.Config.Instances, retentionRows)
		if err != nil || n < retentionRows {
			return err == nil, err
		}
	}
	return false, nil
}

// deleteGone deletes what lockSQL locks, with all that belongs to it, and says how many orders and instances it has
// deleted.
func (r Retention) deleteGone(ctx context.Context, lockSQL string, args ...any) (n int, err error) {
	err = r.DB.change(ctx, func(tx pgx.Tx) error {
		var projects []string
		var ids []uuid.UUID
		if err := tx.QueryRow(ctx, lockSQL+deleteGoneSQL, args...).Scan(&projects, &ids); err != nil {
			return err
		}
		n = len(ids)
		_, err := tx.Exec(ctx, deleteCallbacksSQL, projects, ids)
		return err
	})
	return n, err
}

const (
	// unexpectedKept is how long an unexpected object is remembered that no scan reads, as a scan remembers one that it
	// does not find.
	unexpectedKept = 24 * time.Hour

	// A scan lists the providers and regions of what the project declares.
	unscannedSQL = `not exists (select from managed m where m.project_id = u.project_id and m.provider = u.provider
    and coalesce(m.schedule->>'region', '') = u.region)`

	missUnexpectedSQL = `
update unexpected_objects set missed_at = clock_timestamp() where (project_id, object_id) in (
    select project_id, object_id from unexpected_objects u where missed_at is null and ` + unscannedSQL + `
    limit $1 for update skip locked)`

	// Those that a deletion has left are known for longer, so that no event reports them when more is declared.
	deleteUnexpectedSQL = `
delete from unexpected_objects where (project_id, object_id) in (
    select project_id, object_id from unexpected_objects u
    where missed_at < clock_timestamp() - case when is_orphan then $3::interval else $2::interval end
      and ` + unscannedSQL + `
    limit $1 for update skip locked)`
)

// deleteUnexpected deletes unexpected objects of projects that no scan reads any more. What is scanned, a scan forgets.
func (r Retention) deleteUnexpected(ctx context.Context, until time.Time) (done bool, err error) {
	for time.Now().Before(until) {
		missed, err := exec(ctx, r.DB.pool, missUnexpectedSQL, retentionRows)
		if err != nil {
			return false, err
		}
		deleted, err := exec(ctx, r.DB.pool, deleteUnexpectedSQL, retentionRows, unexpectedKept, r.Config.Instances)
		if err != nil || max(missed, deleted) < retentionRows {
			return err == nil, err
		}
	}
	return false, nil
}

const (
	deleteSumsSQL  = `delete from stats_sums where hour < now() - $1::interval`
	deleteHoursSQL = `
delete from stats_hourly where ctid = any(array(
    select ctid from stats_hourly where hour < now() - $1::interval order by hour limit $2))`
	deleteProjectsSQL = `delete from stats_projects where last_hour < now() - $1::interval`
)

// deleteStats deletes hours, and then projects that have not been counted since.
func (r Retention) deleteStats(ctx context.Context, until time.Time) (done bool, err error) {
	if _, err := exec(ctx, r.DB.pool, deleteSumsSQL, r.Config.Stats); err != nil {
		return false, err
	}
	for time.Now().Before(until) {
		n, err := exec(ctx, r.DB.pool, deleteHoursSQL, r.Config.Stats, retentionRows)
		if err != nil {
			return false, err
		}
		if n < retentionRows {
			_, err = exec(ctx, r.DB.pool, deleteProjectsSQL, r.Config.Stats)
			return err == nil, err
		}
	}
	return false, nil
}
