package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
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

	lockAutomaticSQL = `select pg_advisory_xact_lock(hashtextextended('automatic drains', 0))`

	openAutomaticSQL = `select coalesce(min(node), '') from drains where is_automatic and due_at is not null`

	openDrainSQL = `select ` + drainColumns + ` from drains where node = $1 and due_at is not null for key share`
)

// Create stores a running drain, due at once, with its event. created is false when one runs on the host already: then
// that is returned. It is a Conflict while a cancelled one still follows what Nova was asked to move, and for an
// automatic drain while another one is not over.
func (s Drains) Create(ctx context.Context, drain domain.Drain) (stored domain.Drain, created bool, err error) {
	err = s.DB.changeTx(ctx, func(tx pgx.Tx) error {
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
		err = apperr.New(apperr.Conflict, "a drain of node %s has just ended: ask once more", drain.Node)
	case err == nil && stored.Status != domain.DrainRunning:
		err = apperr.New(apperr.Conflict, "the last drain of node %s is %s, and still follows servers that move",
			drain.Node, stored.Status)
	}
	return stored, false, err
}

// checkAutomatic returns a Conflict while an automatic drain of another host is not over. Until the transaction ends no
// other one is stored.
func checkAutomatic(ctx context.Context, tx pgx.Tx, node string) error {
	if _, err := exec(ctx, tx, lockAutomaticSQL); err != nil {
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

// Cancel ends the running drain of a host: it is due at once, so that what Nova was asked to move already is followed
// to its end. Its event is that of the end. ok is false when none runs.
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
