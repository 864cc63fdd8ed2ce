package postgres

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Queue returns the drains that are due with their servers, the oldest first.
func (s Drains) Queue() Queue[domain.Drain] {
	key := func(d domain.Drain) []any { return []any{d.ID} }
	return Queue[domain.Drain]{db: s.DB, key: key, complete: addServers, spec: due.Queue{
		Table: "drains", Key: []string{"id"}, Columns: drainColumns, Order: "q.created_at, q.id",
	}}
}

const openDrainsSQL = `
select d.node, d.is_automatic, count(*) filter (where s.status = 'moved')::int as moved,
       count(*) filter (where s.status = 'skipped')::int as skipped,
       count(*) filter (where s.status not in ('moved', 'skipped'))::int as unmoved
from drains d left join drain_servers s on s.drain_id = d.id
where d.due_at is not null group by d.node, d.is_automatic order by d.node`

// Open returns how far the drains are that are not over.
func (s Drains) Open(ctx context.Context) ([]domain.DrainProgress, error) {
	return queryAll[domain.DrainProgress](ctx, s.DB.pool, openDrainsSQL)
}

const setDrainServersSQL = `
with claimed as (
    select id, status from drains where id = $1 and claim_id = $2 for no key update
), written as (
    insert into drain_servers as s (drain_id, server_id, name, project_id, method, status, reason, target, attempts,
                                    begun_at, ended_at)
    select c.id, g.* from claimed c join unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::text[], $10::integer[], $11::timestamptz[], $12::timestamptz[]) g on c.status = 'running' or not $13
    on conflict (drain_id, server_id) do update
    set name = excluded.name, project_id = excluded.project_id, method = excluded.method, status = excluded.status,
        reason = excluded.reason, target = excluded.target, attempts = excluded.attempts,
        begun_at = excluded.begun_at, ended_at = excluded.ended_at
    where s is distinct from excluded
)
select coalesce(max(status), '') from claimed`

// SetServers stores servers of a claimed drain: those that are new, and those that differ from what is stored. Others
// stay. It is domain.ErrFenced when another replica has claimed the drain since.
func (s Drains) SetServers(
	ctx context.Context, claim domain.Claim, drain domain.Drain, servers ...domain.DrainServer,
) error {
	_, err := s.setServers(ctx, claim, drain, false, servers...)
	return err
}

// StartServer stores a server of a claimed drain that Nova is about to be asked to move. started is false, and nothing
// is stored, when the drain does not run any more. It is domain.ErrFenced as SetServers is.
func (s Drains) StartServer(
	ctx context.Context, claim domain.Claim, drain domain.Drain, server domain.DrainServer,
) (started bool, err error) {
	status, err := s.setServers(ctx, claim, drain, true, server)
	return status == domain.DrainRunning, err
}

// setServers returns the status of the drain. onlyRunning leaves the servers of one that does not run as they are.
func (s Drains) setServers(
	ctx context.Context, claim domain.Claim, drain domain.Drain, onlyRunning bool, servers ...domain.DrainServer,
) (status domain.DrainStatus, err error) {
	n := len(servers)
	ids, names, projects, methods := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	statuses, reasons, targets := make([]string, n), make([]string, n), make([]string, n)
	attempts, begun, ended := make([]int, n), make([]*time.Time, n), make([]*time.Time, n)
	for i, v := range servers {
		ids[i], names[i], projects[i], methods[i] = v.ServerID, v.Name, v.ProjectID, v.Method
		statuses[i], reasons[i], targets[i] = string(v.Status), v.Reason, v.Target
		attempts[i], begun[i], ended[i] = v.Attempts, orNull(v.BegunAt), orNull(v.EndedAt)
	}
	status, err = queryValue[domain.DrainStatus](ctx, s.DB.pool, setDrainServersSQL, drain.ID, claim.ID, ids, names,
		projects, methods, statuses, reasons, targets, attempts, begun, ended, onlyRunning)
	if err == nil && status == "" {
		err = domain.ErrFenced
	}
	return status, err
}

const saveDrainSQL = `
with after as (
    update drains d
    set status = case when d.status = 'cancelled' and $4 = 'running' then d.status else $4 end, reason = $5,
        attempts = $6,
        due_at = case when d.status = 'cancelled' and $4 = 'running' then clock_timestamp() else $7 end,
        ended_at = case when $7::timestamptz is null then clock_timestamp() end,
        claim_id = case when $8::interval is not null and $7 is not null then d.claim_id end,
        claimed_until = case when $7 is not null then clock_timestamp() + $8::interval end,
        updated_at = clock_timestamp()
    where d.id = $2 and d.claim_id = $3 and d.due_at is not null
    returning *, d.due_at is null as notify
)` + drainEventSQL + `
select ` + drainColumns + ` from after`

// Save writes a claimed drain without its servers: status, reason, attempts and due time. A zero due time ends it, with
// its event. The claim is kept for claimFor, or released when that is zero. A drain that was cancelled since, and has
// not ended, stays cancelled: drain.Status says so. It is domain.ErrFenced when another replica has claimed the drain
// since, or when it has ended.
func (s Drains) Save(
	ctx context.Context, claim domain.Claim, drain *domain.Drain, claimFor time.Duration,
) error {
	var after domain.Drain
	err := retryDeadlock(ctx, func() (err error) {
		var found bool
		after, found, err = queryFound[domain.Drain](ctx, s.DB.pool, saveDrainSQL, s.EventProject, drain.ID, claim.ID,
			drain.Status, drain.Reason, drain.Attempts, orNull(drain.DueAt), orNullDuration(claimFor))
		if err == nil && !found {
			err = domain.ErrFenced
		}
		return err
	})
	if err == nil {
		after.Servers = drain.Servers
		*drain = after
	}
	return err
}

const retireDrainsSQL = `
delete from drains where id in (
    select d.id from drains d
    where d.ended_at < clock_timestamp() - $1::interval
      and exists (select from drains later where later.node = d.node and later.created_at > d.created_at) limit $2)`

// Retire deletes drains that ended longer ago than age, except the last one of each host.
func (s Drains) Retire(ctx context.Context, age time.Duration) error {
	return inBatches(ctx, s.DB.pool, retireDrainsSQL, age)
}
