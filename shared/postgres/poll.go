package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Polls are how far each project with tracked instances was read, and which of these instances to read from Nova.
//
// Prepare, ListFollowed, ListMoving and ListRunningOrders span all projects, because poll-instances serves all; every
// other statement carries a project or a claim.
type Polls struct{ DB *DB }

// A project without a row is read from the moment on at which its first instance was tracked.
var (
	newPollsSQL = `
insert into polls (project_id, since, full_at)
select i.project_id, min(i.created_at), min(i.created_at) from instances i
where i.state <> 'deleted' and ` + followed + ` and not exists (select from polls p where p.project_id = i.project_id)
group by i.project_id
on conflict do nothing`

	oldPollsSQL = `
delete from polls where project_id in (
    select p.project_id from polls p
    where p.project_id <> '' and ` + unclaimed("p") + `
      and not exists (select from instances i where i.project_id = p.project_id and i.state <> 'deleted'
          and ` + followed + `)
    for update skip locked)`
)

// Prepare makes a row for each project that has followed instances, and deletes those of projects that have none.
func (p Polls) Prepare(ctx context.Context) error {
	for _, sql := range []string{newPollsSQL, oldPollsSQL} {
		if _, err := exec(ctx, p.DB.pool, sql); err != nil {
			return err
		}
	}
	return nil
}

// pollColumns are the columns of a domain.Poll from a row p of polls.
const pollColumns = `p.project_id, p.since, p.full_at,
    (select count(*)::int from instances i
     where i.project_id = p.project_id and i.state <> 'deleted' and ` + uncertain + `) as uncertain,
    p.failing_since, p.not_before, p.gone_at, p.sweep_at as scan_at, p.sweep_marker as scan_marker`

// movingSince selects the instances (i) that Nova is changing, and that changed within an interval. The states are
// literals, so that instances_in_motion is used.
func movingSince(within string) string {
	states := make([]string, 0, len(domain.MovingStates()))
	for _, state := range domain.MovingStates() {
		states = append(states, "'"+string(state)+"'")
	}
	return "i.state in (" + strings.Join(states, ", ") + ") and i.updated_at > now() - " + within + "::interval"
}

var (
	followedSQL = `
select ` + pollColumns + ` from polls p
where ` + served("p") + `
  and exists (select from instances i where i.project_id = p.project_id and i.state <> 'deleted' and ` + followed + `)
order by p.project_id`

	movingSQL = `
select distinct i.project_id
from instances i left join orders o on o.project_id = i.project_id and o.id = i.order_id
where ` + movingSince("$1") + ` and ` + followed + ` and ` + served("i") + `
  and (i.server_id is not null or o.claimed_until > now())`
)

// ListFollowed lists the projects that have instances which are not deleted, and a row.
func (p Polls) ListFollowed(ctx context.Context) ([]domain.Poll, error) {
	return p.list(ctx, followedSQL)
}

// ListMoving lists the projects with instances that Nova is changing, and that changed within the time given: an
// instance that has been changing for longer need not be polled so often. An unknown state does not count.
func (p Polls) ListMoving(ctx context.Context, within time.Duration) ([]string, error) {
	return queryColumn[string](ctx, p.DB.pool, movingSQL, within)
}

func (p Polls) list(ctx context.Context, sql string, args ...any) ([]domain.Poll, error) {
	return queryAll[domain.Poll](ctx, p.DB.pool, sql, args...)
}

var (
	claimDueSQL = `
with due as (
    select project_id from polls p
    where project_id <> '' and ` + due.Unclaimed("p", "now()") + ` and ` + served("p") + `
      and coalesce(read_at, '-infinity') < $3 and coalesce(not_before, '-infinity') <= now()
    order by coalesce(read_at, '-infinity'), project_id limit $4
    for update skip locked
)
update polls p set claim_id = $1, claimed_until = clock_timestamp() + $2::interval from due
where p.project_id = due.project_id
returning ` + pollColumns

	claimSomeSQL = `
with free as (
    select project_id from polls p where project_id = any($3) and ` + unclaimed("p") + ` and ` + served("p") + `
      and coalesce(not_before, '-infinity') <= clock_timestamp()
    order by project_id for update skip locked
)
update polls p set claim_id = $1, claimed_until = clock_timestamp() + $2::interval from free
where p.project_id = free.project_id
returning ` + pollColumns

	claimCloudSQL = `
insert into polls as p (project_id, since, full_at, claim_id, claimed_until)
values ('', now(), now(), $1, clock_timestamp() + $2::interval)
on conflict (project_id) do update set claim_id = excluded.claim_id, claimed_until = excluded.claimed_until
where ` + unclaimed("p") + `
returning ` + pollColumns
)

// ClaimDue claims at most limit projects that were not read since the moment, those first that waited longest.
func (p Polls) ClaimDue(
	ctx context.Context, claim domain.Claim, claimFor time.Duration, before time.Time, limit int,
) ([]domain.Poll, error) {
	return p.list(ctx, claimDueSQL, claim.ID, claimFor, before, limit)
}

// ClaimSome claims those of the projects that no one has claimed, and that do not pause.
func (p Polls) ClaimSome(
	ctx context.Context, claim domain.Claim, claimFor time.Duration, projects []string,
) ([]domain.Poll, error) {
	return p.list(ctx, claimSomeSQL, claim.ID, claimFor, projects)
}

// ClaimCloud claims the list of the whole cloud. acquired is false when another replica has it.
func (p Polls) ClaimCloud(
	ctx context.Context, claim domain.Claim, claimFor time.Duration,
) (cloud domain.Poll, acquired bool, err error) {
	return queryFound[domain.Poll](ctx, p.DB.pool, claimCloudSQL, claim.ID, claimFor)
}

// Renew prolongs the claim of all its projects, and returns them. Those that another replica has claimed are missing.
func (p Polls) Renew(ctx context.Context, claim domain.Claim, claimFor time.Duration) (projects []string, err error) {
	return queryColumn[string](ctx, p.DB.pool, `
update polls set claimed_until = clock_timestamp() + $2::interval where claim_id = $1
returning project_id`, claim.ID, claimFor)
}

// Release ends the claim of all its projects, or just of these, as if they had not been claimed.
func (p Polls) Release(ctx context.Context, claim domain.Claim, projects ...string) error {
	_, err := exec(ctx, p.DB.pool, `
update polls set `+due.ReleaseSQL+`
where claim_id = $1 and (cardinality($2::text[]) = 0 or project_id = any($2))`, claim.ID, orEmpty(projects))
	return err
}

// RecordScan records how far the list of all servers was read, if the claim still holds.
func (p Polls) RecordScan(ctx context.Context, claim domain.Claim, poll domain.Poll) error {
	_, err := exec(ctx, p.DB.pool,
		"update polls set sweep_at = $3, sweep_marker = $4 where claim_id = $1 and project_id = $2",
		claim.ID, poll.ProjectID, orNull(poll.ScanAt), poll.ScanMarker)
	return err
}

// The claim of the whole cloud writes for all projects; it leaves the claims that other replicas have on projects.
const readSQL = `
update polls p
set since = greatest(p.since, r.since), full_at = greatest(p.full_at, r.full_at), read_at = clock_timestamp(),
    failing_since = r.failing_since, not_before = r.not_before, gone_at = r.gone_at,
    sweep_at = r.sweep_at, sweep_marker = r.sweep_marker,
    claim_id = nullif(p.claim_id, $1), claimed_until = case when p.claim_id = $1 then null else p.claimed_until end
from unnest($2::text[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
            $8::timestamptz[], $9::text[])
    as r (project_id, since, full_at, failing_since, not_before, gone_at, sweep_at, sweep_marker)
where p.project_id = r.project_id
  and (p.claim_id = $1 or exists (select from polls w where w.project_id = '' and w.claim_id = $1))`

// RecordRead records how far projects were read and releases them, if the claim still holds. What was read further
// since stays.
func (p Polls) RecordRead(ctx context.Context, claim domain.Claim, polls []domain.Poll) error {
	var projects, markers []string
	var since, full []time.Time
	var failing, notBefore, gone, scan []*time.Time
	for _, r := range polls {
		projects, markers = append(projects, r.ProjectID), append(markers, r.ScanMarker)
		since, full = append(since, r.Since), append(full, r.FullAt)
		failing, notBefore = append(failing, orNull(r.FailingSince)), append(notBefore, orNull(r.NotBefore))
		gone, scan = append(gone, orNull(r.GoneAt)), append(scan, orNull(r.ScanAt))
	}
	_, err := write(ctx, p.DB, exec, readSQL, claim.ID, projects, since, full, failing, notBefore, gone, scan, markers)
	return err
}

// followed selects the instances (i) that poll-instances follows: not those in another cloud, and disconnected ones
// only while they count against a connection's quota.
const followed = `not i.remote and (i.disconnected_at is null or i.connection_id is not null)`

// uncertain selects those of them (i) that have to be fetched by id.
const uncertain = followed + ` and i.server_id is not null and (i.missed_at is not null or i.state = 'unknown')`

// A server that no instance has yet is found by its tags, if a create call of the instance can have made it (as in
// domain.Order.OwnServer). While the order is claimed, the claim's replica decides: it may find that the server was
// made twice.
var ofServersSQL = `
select ` + instanceColumns + ` from instances i
    join unnest($1::text[], $2::text[]) as s (s_project, s_server) on i.project_id = s_project
        and i.server_id = s_server
where i.state <> 'deleted' and ` + followed + `
union all
select ` + madeColumns + ` from instances i
    join (
        select distinct on (t_project, t_instance) t_project, t_instance, t_server, c.id as t_call
        from unnest($3::text[], $4::uuid[], $5::text[], $6::uuid[], $7::timestamptz[]) as t (t_project, t_instance,
            t_server, t_tag, t_created)
            join instances u on u.project_id = t_project and u.id = t_instance and u.server_id is null
            join orders o on o.project_id = t_project and o.id = u.order_id and ` + unclaimed("o") + `
            join create_calls c on c.project_id = t_project and c.id = t_tag and c.instance_id = t_instance
                and (c.server_id = t_server or c.server_id is null and c.ended_at is null)
                    and t_created < c.until + $8::interval
        order by t_project, t_instance, t_created, t_server
    ) as made on i.project_id = t_project and i.id = t_instance
where i.state <> 'deleted' and i.server_id is null and ` + followed

// madeColumns are instanceColumns with the server and the create call that the instance is about to get.
var madeColumns = strings.NewReplacer("coalesce(server_id, '')", "t_server", "null::uuid",
	"t_call").Replace(instanceColumns)

// ListByServers finds the tracked instances of the servers, but not deleted ones: by server id, and by the tags of the
// instance and its create call when the instance has no server yet. Such an instance has the ServerID and CallID that
// it is about to get.
func (p Polls) ListByServers(ctx context.Context, servers []domain.Server) ([]domain.Instance, error) {
	var projects, ids, tagProjects, tagServers []string
	var tags, calls []uuid.UUID
	var made []time.Time
	for _, s := range servers {
		projects, ids = append(projects, s.ProjectID), append(ids, s.ID)
		// an instance without a server must not get a deleted one
		if domain.StateOf(s.Status, "") == domain.InstanceDeleted {
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

// While the order is claimed, its servers are left to the claim's replica. A server that is tracked under another id is
// not reported.
var unwantedSQL = `
select s_server from unnest($1::text[], $2::text[], $3::uuid[], $4::uuid[]) as s (s_project, s_server, s_order,
    s_instance)
    join orders o on o.project_id = s_project and o.id = s_order
    join instances i on i.project_id = s_project and i.id = s_instance and i.order_id = o.id
where ` + unclaimed("o") + `
  and i.server_id is distinct from s_server and i.disconnected_at is null
  and not exists (select from instances other where other.project_id = s_project and other.server_id = s_server)
  and not exists (select from unexpected_servers u
                  where u.project_id = s_project and u.instance_id = s_instance and u.server_id = s_server)`

// ListUnwanted lists the ids of the servers that carry the tags of an order and its instance, are not that instance's,
// and were not reported by an event yet. Most belong to others; domain.Order.Duplicate says which of them the order
// itself has made.
func (p Polls) ListUnwanted(ctx context.Context, servers []domain.Server) ([]string, error) {
	var projects, ids []string
	var orders, instances []uuid.UUID
	for _, s := range servers {
		if order, instance, ok := s.Made(); ok {
			projects, ids = append(projects, s.ProjectID), append(ids, s.ID)
			orders, instances = append(orders, order), append(instances, instance)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return queryColumn[string](ctx, p.DB.pool, unwantedSQL, projects, ids, orders, instances)
}

func (p Polls) instances(ctx context.Context, sql string, args ...any) ([]domain.Instance, error) {
	return queryAll[domain.Instance](ctx, p.DB.pool, sql, args...)
}

const (
	uncertainSQL = `
select ` + instanceColumns + ` from instances i
where project_id = any($1) and state <> 'deleted' and ` + uncertain + `
order by seen_at nulls first
limit $2`

	missingSQL = `
select ` + instanceColumns + ` from instances i
where project_id = any($1) and state <> 'deleted' and ` + followed + ` and server_id is not null and created_at < $2
  and coalesce(seen_at, '-infinity') < $2`

	staleTrackedSQL = `
select ` + instanceColumns + ` from instances i
where project_id = $1 and state not in ('deleted', 'unknown') and ` + followed + ` and server_id is not null
  and coalesce(seen_at, created_at) < $2`
)

// ListUncertain lists at most limit instances of the projects that have to be fetched by id: those that Nova did not
// know at the last poll, and those whose state is unknown. The ones that waited longest come first.
func (p Polls) ListUncertain(ctx context.Context, projects []string, limit int) ([]domain.Instance, error) {
	return p.instances(ctx, uncertainSQL, projects, limit)
}

// ListMissing lists the projects' instances that were tracked before the moment, and whose servers were not observed
// since.
func (p Polls) ListMissing(ctx context.Context, projects []string, before time.Time) ([]domain.Instance, error) {
	return p.instances(ctx, missingSQL, projects, before)
}

// Rows are locked in the order of Instances.Change.
const seenSQL = `
update instances i set seen_at = $3
from (select s.project_id, s.id from instances s
      join unnest($1::text[], $2::uuid[]) as k (k_project, k_id) on s.project_id = k_project and s.id = k_id
      where coalesce(s.seen_at, '-infinity') < $3 and s.state <> 'deleted' order by s.id for update of s) seen
where i.project_id = seen.project_id and i.id = seen.id`

// RecordUnchanged records that the instances were observed at the moment, unchanged.
func (p Polls) RecordUnchanged(ctx context.Context, unchanged []domain.Instance, at time.Time) error {
	var projects []string
	var ids []uuid.UUID
	for _, i := range unchanged {
		projects, ids = append(projects, i.ProjectID), append(ids, i.ID)
	}
	_, err := write(ctx, p.DB, exec, seenSQL, projects, ids, at)
	return err
}

const livingSQL = `
select ` + instanceColumns + ` from instances i where project_id = $1 and state <> 'deleted' and ` + followed

// ListLiving lists the project's instances that are followed.
func (p Polls) ListLiving(ctx context.Context, projectID string) ([]domain.Instance, error) {
	return p.instances(ctx, livingSQL, projectID)
}

// ListStale lists the project's instances that no function has observed since the moment, except those whose state is
// unknown already.
func (p Polls) ListStale(ctx context.Context, projectID string, since time.Time) ([]domain.Instance, error) {
	return p.instances(ctx, staleTrackedSQL, projectID, since)
}

var runningSQL = `
select o.project_id, o.id, o.updated_at from orders o
where ($1::timestamptz is null or (o.updated_at, o.id) > ($1, $2::uuid))
  and o.status = 'running' and ` + served("o") + `
  and o.connection_id is null -- run-connections works on those
  and (o.spec->>'on_failure' = 'rollback'
       or not exists (select from instances i where i.project_id = o.project_id and i.order_id = o.id
                      and i.server_id is null and i.problem is null))
order by o.updated_at, o.id limit $3`

// ListRunningOrders lists the running orders that can continue without their caller: Nova has accepted or rejected each
// of their instances, or they have to be rolled back. Those that were claimed longest ago come first, at most limit of
// them, and after the last one of the page before.
func (p Polls) ListRunningOrders(
	ctx context.Context, after domain.RunningOrder, limit int,
) ([]domain.RunningOrder, error) {
	return queryAll[domain.RunningOrder](ctx, p.DB.pool, runningSQL, orNull(after.UpdatedAt), after.ID, limit)
}
