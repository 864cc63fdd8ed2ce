package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Polls are what is needed to follow tracked instances: how far each project was read, and which instances to ask for.
//
// Prepare, Followed, Moving and Running look at all projects, because poll-instances serves all; every other statement names
// its own.
type Polls struct{ DB *DB }

// followed are the instances (i) that poll-instances follows: not those in another cloud, and of those that were let go only what
// still counts against a connection's quota.
const followed = `not i.remote and (i.disconnected_at is null or i.connection_id is not null)`

// doubtful are those of them (i) that have to be asked for by id.
const doubtful = followed + ` and i.server_id is not null and (i.missed_at is not null or i.state = 'unknown')`

// A server that no instance has yet is known by its tags, if a create call of the instance can have made it (as
// domain.Order.OwnServer has it). While a replica works on the order that is left to it: it may find that the server was made twice.
const ofServersSQL = `
select ` + instanceColumns + ` from instances i
    join unnest($1::text[], $2::text[]) as s (s_project, s_server) on i.project_id = s_project and i.server_id = s_server
where i.state <> 'deleted' and ` + followed + `
union all
select ` + instanceColumnsA + `t_server, ` + instanceColumnsB + `t_call from instances i
    join (
        select distinct on (t_project, t_instance) t_project, t_instance, t_server, coalesce(c.id, '00000000-0000-0000-0000-000000000000') as t_call
        from unnest($3::text[], $4::uuid[], $5::text[], $6::uuid[], $7::timestamptz[]) as t (t_project, t_instance, t_server, t_tag, t_created)
            join instances u on u.project_id = t_project and u.id = t_instance and u.server_id is null
            join orders o on o.project_id = t_project and o.id = u.order_id and coalesce(o.claimed_until, '-infinity') <= clock_timestamp()
            left join create_calls c on c.project_id = t_project and c.id = t_tag and c.instance_id = t_instance
                and (c.server_id = t_server or c.server_id is null and c.ended_at is null) and t_created < c.until + $8::interval
        where c.id is not null or not o.calls_recorded and o.status = 'running'
        order by t_project, t_instance, t_created, t_server
    ) as made on i.project_id = t_project and i.id = t_instance
where i.state <> 'deleted' and i.server_id is null and ` + followed

// OfServers finds the tracked instances, not deleted, that are the servers': by server id, and by the tags of the instance and its
// create call when the instance has no server yet. Such an instance has the ServerID and CallID that it is about to get.
func (p Polls) OfServers(ctx context.Context, servers []domain.Server) ([]domain.Instance, error) {
	var projects, ids, tagProjects, tagServers []string
	var tags, calls []uuid.UUID
	var made []time.Time
	for _, s := range servers {
		projects, ids = append(projects, s.ProjectID), append(ids, s.ID)
		if domain.StateOf(s.Status, "") == domain.InstanceDeleted { // no reason to abandon an instance that has no server yet
			continue
		}
		call, _ := s.CallTagged()
		for _, tag := range s.Tags {
			if id, err := uuid.Parse(tag); err == nil && len(tag) == len(id.String()) {
				tagProjects, tagServers = append(tagProjects, s.ProjectID), append(tagServers, s.ID)
				tags, calls, made = append(tags, id), append(calls, call), append(made, s.CreatedAt)
			}
		}
	}
	return p.instances(ctx, ofServersSQL, projects, ids, tagProjects, tags, tagServers, calls, made, domain.ClockSkew)
}

// While a replica works on the order, nothing is said of its servers. One that is tracked under another id is somebody's.
const unwantedSQL = `
select s_server from unnest($1::text[], $2::text[], $3::uuid[], $4::uuid[]) as s (s_project, s_server, s_order, s_instance)
    join orders o on o.project_id = s_project and o.id = s_order
    join instances i on i.project_id = s_project and i.id = s_instance and i.order_id = o.id
where coalesce(o.claimed_until, '-infinity') < clock_timestamp()
  and i.server_id is distinct from s_server and i.disconnected_at is null
  and not exists (select from instances other where other.project_id = s_project and other.server_id = s_server)
  and not exists (select from unexpected_servers u where u.project_id = s_project and u.instance_id = s_instance and u.server_id = s_server)`

// Unwanted lists the ids of the servers that carry the tags of an order and its instance, are not that instance's and were not
// reported by an event yet. Most are somebody's; domain.Order.Duplicate says which of them the order itself has made.
func (p Polls) Unwanted(ctx context.Context, servers []domain.Server) ([]string, error) {
	var projects, ids []string
	var orders, instances []uuid.UUID
	for _, s := range servers {
		if order, instance, ok := s.Made(); ok {
			projects, ids, orders, instances = append(projects, s.ProjectID), append(ids, s.ID), append(orders, order), append(instances, instance)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	rows, _ := p.DB.pool.Query(ctx, unwantedSQL, projects, ids, orders, instances)
	unwanted, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return unwanted, classify(err)
}

func (p Polls) instances(ctx context.Context, sql string, args ...any) ([]domain.Instance, error) {
	rows, _ := p.DB.pool.Query(ctx, sql, args...)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Instance])
	return found, classify(err)
}

const (
	doubtfulSQL = `
select ` + instanceColumns + ` from instances i
where project_id = any($1) and state <> 'deleted' and ` + doubtful + `
order by seen_at nulls first
limit $2`

	unseenSQL = `
select ` + instanceColumns + ` from instances i
where project_id = any($1) and state <> 'deleted' and ` + followed + ` and server_id is not null and created_at < $2
  and coalesce(seen_at, '-infinity') < $2`

	silentSQL = `
select ` + instanceColumns + ` from instances i
where project_id = $1 and state not in ('deleted', 'unknown') and ` + followed + ` and server_id is not null and coalesce(seen_at, created_at) < $2`
)

// ListUncertain lists instances of the projects that have to be asked for by id: those that Nova did not know when it was last
// asked, and those of which nothing is known; at most limit, the ones first that were not asked for the longest.
func (p Polls) ListUncertain(ctx context.Context, projects []string, limit int) ([]domain.Instance, error) {
	return p.instances(ctx, doubtfulSQL, projects, limit)
}

// ListMissing lists the projects' instances, tracked since before the moment, whose servers were not seen since.
func (p Polls) ListMissing(ctx context.Context, projects []string, before time.Time) ([]domain.Instance, error) {
	return p.instances(ctx, unseenSQL, projects, before)
}

// What was seen is locked in the order in which Instances.Change does it.
const seenSQL = `
update instances i set seen_at = $3
from (select s.project_id, s.id from instances s
      join unnest($1::text[], $2::uuid[]) as k (k_project, k_id) on s.project_id = k_project and s.id = k_id
      where coalesce(s.seen_at, '-infinity') < $3 and s.state <> 'deleted' order by s.id for update of s) seen
where i.project_id = seen.project_id and i.id = seen.id`

// Seen writes that the instances were seen at the moment, and are as they were.
func (p Polls) Seen(ctx context.Context, unchanged []domain.Instance, at time.Time) error {
	var projects []string
	var ids []uuid.UUID
	for _, i := range unchanged {
		projects, ids = append(projects, i.ProjectID), append(ids, i.ID)
	}
	return classify(again(func() error {
		_, err := p.DB.pool.Exec(ctx, seenSQL, projects, ids, at)
		return err
	}))
}

const livingSQL = `
select ` + instanceColumns + ` from instances i where project_id = $1 and state <> 'deleted' and ` + followed

// Living lists the project's instances that are followed.
func (p Polls) Living(ctx context.Context, projectID string) ([]domain.Instance, error) {
	return p.instances(ctx, livingSQL, projectID)
}

// ListStale lists the project's instances that no function has seen since the moment, except those that are unknown already.
func (p Polls) ListStale(ctx context.Context, projectID string, since time.Time) ([]domain.Instance, error) {
	return p.instances(ctx, silentSQL, projectID, since)
}

const runningSQL = `
select o.project_id, o.id from orders o
where o.status = 'running' and o.connection_id is null -- run-connections works on those
  and (o.spec->>'on_failure' = 'rollback'
       or not exists (select from instances i where i.project_id = o.project_id and i.order_id = o.id and i.server_id is null and i.problem is null))
order by o.created_at`

// Running lists the orders that are running, for which something can be done without their caller: Nova has accepted or
// refused each of their instances, or they are to be rolled back. Only ProjectID and ID are set.
func (p Polls) Running(ctx context.Context) ([]domain.Order, error) {
	rows, _ := p.DB.pool.Query(ctx, runningSQL)
	orders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o domain.Order, err error) {
		return o, row.Scan(&o.ProjectID, &o.ID)
	})
	return orders, classify(err)
}
