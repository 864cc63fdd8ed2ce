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
// Followed and Running look at all projects, because poll-instances serves all; every other statement names its own.
type Polls struct{ DB *DB }

// followed are the instances (i) that poll-instances follows: not those in another cloud, and of those that were let go only what
// still counts against a connection's quota.
const followed = `not i.remote and (i.disconnected_at is null or i.connection_id is not null)`

// Of a project that was never read, all is known from the moment on at which its first instance was tracked. Those come
// first that were not read for the longest, so that each has its turn when the time does not suffice for all.
const (
	followedSQL = `
select i.project_id, coalesce(p.since, min(i.created_at)), coalesce(p.full_at, min(i.created_at)),
       (count(*) filter (where i.state = 'unknown'))::int
from instances i left join polls p on p.project_id = i.project_id
where i.state <> 'deleted' and ` + followed + `
group by i.project_id, p.since, p.full_at
order by 2, i.project_id`

	movingSQL = `
select i.project_id, coalesce(p.since, min(i.created_at)), coalesce(p.full_at, min(i.created_at)), 0
from instances i
    left join polls p on p.project_id = i.project_id
    left join orders o on o.project_id = i.project_id and o.id = i.order_id
where i.state = any($1) and ` + followed + ` and i.updated_at > clock_timestamp() - $2::interval
  and (i.server_id is not null or o.claimed_until > clock_timestamp())
group by i.project_id, p.since, p.full_at
order by 2, i.project_id`
)

// Followed lists the projects that have instances which are not deleted.
func (p Polls) Followed(ctx context.Context) ([]domain.Poll, error) {
	return p.list(ctx, followedSQL)
}

// Moving lists the projects with instances that Nova is at work on, and that changed within the time given: one that has
// been at it for longer need not be watched so closely. Unknown is not counted.
func (p Polls) Moving(ctx context.Context, within time.Duration) ([]domain.Poll, error) {
	return p.list(ctx, movingSQL, domain.MovingStates(), within)
}

func (p Polls) list(ctx context.Context, sql string, args ...any) ([]domain.Poll, error) {
	rows, _ := p.DB.pool.Query(ctx, sql, args...)
	polls, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Poll])
	return polls, classify(err)
}

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

// Unwanted are the ids of those of the servers that carry the tags of an order and its instance, are not that instance's and were
// not told of yet. Most are somebody's; domain.Order.Duplicate says which of them the order itself has made.
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
where project_id = any($1) and state <> 'deleted' and ` + followed + ` and server_id is not null and (missed_at is not null or state = 'unknown')
order by seen_at nulls first
limit $2`

	unseenSQL = `
select ` + instanceColumns + ` from instances i
where project_id = any($1) and state <> 'deleted' and ` + followed + ` and server_id is not null and created_at < $2
  and not exists (select from unnest($3::text[]) as s (s_server) where s_server = server_id)`

	silentSQL = `
select ` + instanceColumns + ` from instances i
where project_id = $1 and state not in ('deleted', 'unknown') and ` + followed + ` and server_id is not null and coalesce(seen_at, created_at) < $2`
)

// Doubtful lists instances of the projects that have to be asked for by id: those that Nova did not know when it was last
// asked, and those of which nothing is known; at most limit, the ones first that were not asked for the longest.
func (p Polls) Doubtful(ctx context.Context, projects []string, limit int) ([]domain.Instance, error) {
	return p.instances(ctx, doubtfulSQL, projects, limit)
}

// Unseen lists the projects' instances, tracked since before the moment, whose servers are not among those seen.
func (p Polls) Unseen(ctx context.Context, projects []string, before time.Time, seen []string) ([]domain.Instance, error) {
	return p.instances(ctx, unseenSQL, projects, before, seen)
}

// Silent lists the project's instances of which nobody has heard since the moment, but for those that are unknown already.
func (p Polls) Silent(ctx context.Context, projectID string, since time.Time) ([]domain.Instance, error) {
	return p.instances(ctx, silentSQL, projectID, since)
}

const readSQL = `
insert into polls as p (project_id, since, full_at)
select * from unnest($1::text[], $2::timestamptz[], $3::timestamptz[])
on conflict (project_id) do update
set since = greatest(p.since, excluded.since), full_at = greatest(p.full_at, excluded.full_at)`

// Read writes how far projects were read. A copy that was overtaken takes nothing back.
func (p Polls) Read(ctx context.Context, polls []domain.Poll) error {
	var projects []string
	var since, full []time.Time
	for _, r := range polls {
		projects, since, full = append(projects, r.ProjectID), append(since, r.Since), append(full, r.FullAt)
	}
	_, err := p.DB.pool.Exec(ctx, readSQL, projects, since, full)
	return classify(err)
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
