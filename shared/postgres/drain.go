package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Drains move the servers off hosts. One replica at a time works on a drain (claim.go).
type Drains struct {
	DB           *DB
	EventProject string // gets the events of drains; empty = only the operator's sink
}

const (
	drainColumns = `
id, node, status, reason, is_automatic, requested_by, actor, parallel, server_timeout, attempts, due_at, created_at,
updated_at, ended_at`

	// drainEventSQL writes the event of drains of after, in the stream of their host. $1 is the project of the events.
	// Which of them begin or end is a condition to add.
	drainEventSQL = `, numbered as (
    update nodes n set seq = n.seq + 1 from after a where n.name = a.node and a.notify returning n.name, n.seq
), event as (
    insert into events (project_id, subject, seq, type, at, data)
    select $1, a.node, n.seq, '` + domain.DrainEvent + `', a.updated_at, jsonb_strip_nulls(jsonb_build_object(
               'drain_id', a.id, 'node', a.node, 'status', a.status, 'reason', a.reason, 'moved', c.moved,
               'left', c.unmoved, 'skipped', c.skipped, 'actor', a.actor))
    from after a join numbered n on n.name = a.node, lateral (
        select count(*) filter (where status = 'moved') as moved, count(*) filter (where status = 'skipped') as skipped,
               count(*) filter (where status not in ('moved', 'skipped')) as unmoved
        from drain_servers s where s.drain_id = a.id) c
)`

	createDrainSQL = `
with after as (
    insert into drains (id, node, status, is_automatic, requested_by, actor, parallel, server_timeout, due_at,
                        created_at)
    values ($2, $3, 'running', $4, $5, $6, $7, $8, clock_timestamp(), clock_timestamp())
    on conflict (node) where due_at is not null do nothing
    returning *, true as notify
)` + drainEventSQL + `
select ` + drainColumns + ` from after`

	openAutomaticSQL = `select coalesce(min(node), '') from drains where is_automatic and due_at is not null`

	openDrainSQL = `select ` + drainColumns + ` from drains where node = $1 and due_at is not null for key share`
)

// Create stores a running drain, due immediately, with its event. created is false when one runs on the host already:
// then that is returned. It is a Conflict while a cancelled one still follows what Nova was requested to move, and for
// an automatic drain while another one is not over.
func (s Drains) Create(ctx context.Context, drain domain.Drain) (stored domain.Drain, created bool, err error) {
	err = s.DB.change(ctx, func(tx pgx.Tx) error {
		stored, created, err = createDrain(ctx, tx, s.EventProject, drain)
		return err
	})
	if err == nil && !created {
		stored, err = s.Get(ctx, stored.ID)
	}
	return stored, created, err
}

func createDrain(
	ctx context.Context, tx pgx.Tx, project string, drain domain.Drain,
) (stored domain.Drain, created bool, err error) {
	if drain.IsAutomatic {
		if err := checkAutomatic(ctx, tx, drain.Node); err != nil {
			return drain, false, err
		}
	}
	if _, err := exec(ctx, tx, nameNodeSQL, drain.Node); err != nil {
		return drain, false, err
	}
	stored, created, err = queryFound[domain.Drain](ctx, tx, createDrainSQL, project, drain.ID, drain.Node,
		drain.IsAutomatic, drain.RequestedBy, drain.Actor, drain.Parallel, drain.ServerTimeout)
	if err != nil || created {
		return stored, created, err
	}
	stored, err = queryOne[domain.Drain](ctx, tx, openDrainSQL, drain.Node)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		err = apperr.New(apperr.Conflict, "a drain of node %s has just ended: send the request again", drain.Node)
	case err == nil && stored.Status != domain.DrainRunning:
		err = apperr.New(apperr.Conflict, "the last drain of node %s is %s, and still follows servers that move",
			drain.Node, stored.Status)
	}
	return stored, false, err
}

// checkAutomatic returns a Conflict while an automatic drain of another host is not over. Until the transaction ends no
// other one is stored.
func checkAutomatic(ctx context.Context, tx pgx.Tx, node string) error {
	if err := lockName(ctx, tx, "automatic drains"); err != nil {
		return err
	}
	open, err := queryValue[string](ctx, tx, openAutomaticSQL)
	if err == nil && open != "" && open != node {
		err = apperr.New(apperr.Conflict, "node %s is drained automatically: one host at a time is", open)
	}
	return err
}

// Get reads a drain with its servers.
func (s Drains) Get(ctx context.Context, id uuid.UUID) (domain.Drain, error) {
	found, err := queryOne[domain.Drain](ctx, s.DB.pool, "select "+drainColumns+" from drains where id = $1", id)
	if err != nil {
		return found, orNotFound(err, "unknown drain %s", id)
	}
	one := []domain.Drain{found}
	err = addServers(ctx, s.DB.pool, one)
	return one[0], err
}

const lastDrainsSQL = `
select distinct on (node) ` + drainColumns + ` from drains
where cardinality($1::text[]) = 0 or node = any($1) order by node, created_at desc`

// Last reads the newest drain of each host that has one, with its servers, by the host's name. No names = all hosts.
func (s Drains) Last(ctx context.Context, nodes ...string) (map[string]domain.Drain, error) {
	found, err := queryAll[domain.Drain](ctx, s.DB.pool, lastDrainsSQL, orEmpty(nodes))
	if err == nil {
		err = addServers(ctx, s.DB.pool, found)
	}
	last := make(map[string]domain.Drain, len(found))
	for _, d := range found {
		last[d.Node] = d
	}
	return last, err
}

// Cancel ends the running drain of a host: it is due immediately, so that what Nova was requested to move already is
// followed to its end. Its event is that of the end. ok is false when none runs.
func (s Drains) Cancel(ctx context.Context, node string) (ok bool, err error) {
	n, err := exec(ctx, s.DB.pool, `
update drains set status = 'cancelled', due_at = clock_timestamp(), updated_at = clock_timestamp()
where node = $1 and status = 'running'`, node)
	return n == 1, err
}

const drainServersSQL = `
select drain_id, server_id, name, project_id, method, status, reason, target, attempts, begun_at, ended_at
from drain_servers where drain_id = any($1) order by drain_id, name, server_id`

// addServers reads the servers of drains, by name.
func addServers(ctx context.Context, db querier, drains []domain.Drain) error {
	type row struct {
		domain.DrainServer

		DrainID uuid.UUID
	}
	if len(drains) == 0 {
		return nil
	}
	ids, at := make([]uuid.UUID, len(drains)), map[uuid.UUID]int{}
	for n, d := range drains {
		ids[n], at[d.ID] = d.ID, n
	}
	rows, err := queryAll[row](ctx, db, drainServersSQL, ids)
	for _, r := range rows {
		d := &drains[at[r.DrainID]]
		d.Servers = append(d.Servers, r.DrainServer)
	}
	return err
}

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

// StartServer stores a server of a claimed drain that Nova is about to move. started is false, and nothing
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
	after, err := write(ctx, s.DB, queryOne[domain.Drain], saveDrainSQL, s.EventProject, drain.ID, claim.ID,
		drain.Status, drain.Reason, drain.Attempts, orNull(drain.DueAt), orNullDuration(claimFor))
	if err != nil {
		return ifNone(err, domain.ErrFenced)
	}
	after.Servers = drain.Servers
	*drain = after
	return nil
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
