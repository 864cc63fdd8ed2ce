package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

var claimDrainsSQL = `
update drains set claim_id = $1, claimed_until = clock_timestamp() + $2::interval
where id in (
    select d.id from drains d where d.due_at <= now() and ` + unclaimedAt("d", "now()") + `
    order by d.created_at, d.id limit $3 for no key update skip locked
)
returning ` + drainColumns

// Claim claims due drains with their servers, the oldest first. Several replicas that claim at once get different ones.
func (s Drains) Claim(
	ctx context.Context, claimFor time.Duration, limit int,
) (claimed []domain.Drain, claim domain.Claim, err error) {
	claim = domain.NewClaim()
	claimed, err = queryAll[domain.Drain](ctx, s.DB.pool, claimDrainsSQL, claim.ID, claimFor, limit)
	if err != nil {
		return nil, claim, err
	}
	slices.SortFunc(claimed, func(a, b domain.Drain) int { return a.CreatedAt.Compare(b.CreatedAt) })
	claim.Acquired = len(claimed) > 0
	return claimed, claim, addServers(ctx, s.DB.pool, claimed)
}

var drainsDueSQL = `
select exists (select from drains d
               where d.due_at <= now() + $1::interval and ` + unclaimedAt("d",
	"now() + $1::interval") + `)`

// IsDue reports whether a drain that nobody has claimed is due now or soon, so that it pays to wait for it.
func (s Drains) IsDue(ctx context.Context, soon time.Duration) (bool, error) {
	return queryValue[bool](ctx, s.DB.pool, drainsDueSQL, soon)
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
	err := retryDeadlock(func() (err error) {
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
delete from drains d
where d.ended_at < clock_timestamp() - $1::interval
  and exists (select from drains later where later.node = d.node and later.created_at > d.created_at)`

// Retire deletes drains that ended longer ago than age, except the last one of each host.
func (s Drains) Retire(ctx context.Context, age time.Duration) error {
	_, err := exec(ctx, s.DB.pool, retireDrainsSQL, age)
	return err
}
