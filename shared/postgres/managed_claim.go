package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Queue returns the projects whose managed resources are due, the longest due first. While a project is claimed, it is
// due when the claim ends, unless something is declared in it meanwhile. So a process that dies loses nothing, and
// the replica that releases the claim sees what has come.
func (s Managed) Queue() Queue[domain.ManagedProject] {
	key := func(p domain.ManagedProject) []any { return []any{p.ProjectID} }
	return Queue[domain.ManagedProject]{db: s.DB, key: key, spec: due.Queue{
		Table: "managed_projects", Key: []string{"project_id"},
		Columns: "project_id, domain_id, due_at, scan_at, attempts, problem",
		Where:   served("q"), Order: "q.due_at", OnClaim: "due_at = claim.until",
		OnRenew: "due_at = case when q.due_at = q.claimed_until then claim.until else q.due_at end",
	}}
}

const (
	lockClaimedProjectSQL = `
select count(*) from (select from managed_projects where project_id = $1 and claim_id = $2 for update) locked`

	deleteEmptyProjectSQL = `
delete from managed_projects p where project_id = $1 and not exists (select from managed m where m.project_id = $1)`

	releaseProjectSQL = `
update managed_projects
set due_at = least(case when due_at = claimed_until then 'infinity' else due_at end, clock_timestamp() + $3::interval),
    scan_at = case when scan_at <= $7 then coalesce($6, scan_at) else scan_at end, attempts = $4, problem = $5,
    ` + due.ReleaseSQL + `
where project_id = $1 and claim_id = $2`
)

// ReleaseProject releases the claim of a project with its NextScanAt, Attempts and Problem. The project is due again
// after dueIn, or immediately when something was declared in it since it was claimed. One without resources is deleted.
// It is domain.ErrFenced when another replica has claimed the project since.
func (s Managed) ReleaseProject(
	ctx context.Context, claim domain.Claim, project domain.ManagedProject, dueIn time.Duration,
) error {
	return s.DB.change(ctx, func(tx pgx.Tx) error {
		locked, err := queryValue[int64](ctx, tx, lockClaimedProjectSQL, project.ProjectID, claim.ID)
		if err := fenced(locked, err); err != nil {
			return err
		}
		deleted, err := exec(ctx, tx, deleteEmptyProjectSQL, project.ProjectID)
		if err != nil || deleted > 0 {
			return err
		}
		_, err = exec(ctx, tx, releaseProjectSQL, project.ProjectID, claim.ID, dueIn, project.Attempts,
			project.Problem, orNull(project.NextScanAt), project.ScanAt)
		return err
	})
}

const (
	loadManagedSQL = "select " + managedColumns + ", r.secrets" + managedTables +
		" where m.project_id = $1 order by m.id"

	loadMembersSQL = "select " + memberColumns + ` from managed_members
where project_id = $1 order by managed_id, ordinal, id`

	madeRevisionsSQL = `
select r.managed_id, r.number, r.flavor, r.spec, r.secrets, r.digest, r.labels, r.schedule, r.rolled_back, r.user_id,
       r.created_at
from managed_revisions r join managed m on m.project_id = r.project_id and m.id = r.managed_id
where r.project_id = $1 and r.number <> m.revision
  and (r.number = m.observed_revision
       or exists (select from managed_members x
                  where x.project_id = r.project_id and x.managed_id = r.managed_id and x.revision <= r.number))`
)

// ManagedKeys lists the keys that secrets of managed resources are encrypted with.
func (db *DB) ManagedKeys(ctx context.Context) ([]domain.KeyUse, error) {
	return keyUses(ctx, db, "managed_revisions where secrets is not null", "secrets")
}

// Load reads all resources of a project for reconcile-managed, in the order of their creation: with spec, sealed
// secrets, members, the older revisions that members have, and those that were declared since.
func (s Managed) Load(ctx context.Context, projectID string) ([]domain.Managed, error) {
	found, err := queryAll[domain.Managed](ctx, s.DB.pool, loadManagedSQL, projectID)
	if err != nil {
		return nil, err
	}
	members, err := queryAll[domain.Member](ctx, s.DB.pool, loadMembersSQL, projectID)
	if err != nil {
		return nil, err
	}
	type madeRevision struct {
		domain.Revision

		ManagedID uuid.UUID
	}
	made, err := queryAll[madeRevision](ctx, s.DB.pool, madeRevisionsSQL, projectID)
	if err != nil {
		return nil, err
	}
	byID := make(map[uuid.UUID]*domain.Managed, len(found))
	for n := range found {
		byID[found[n].ID] = &found[n]
	}
	for _, member := range members {
		if m := byID[member.ManagedID]; m != nil { // nil: it was declared just now
			member.Declarations = m.Declarations
			m.Members = append(m.Members, member)
		}
	}
	for _, r := range made {
		m := byID[r.ManagedID]
		if m == nil {
			continue
		}
		if m.Made == nil {
			m.Made = map[int]domain.Revision{}
		}
		m.Made[r.Number] = r.Revision
	}
	return found, nil
}

const (
	// claimedProjectSQL has a row while the claim ($2) is the project's ($1), and keeps it so until the statement ends.
	claimedProjectSQL = `claimed as (
    select project_id from managed_projects where project_id = $1 and claim_id = $2 for share
)`

	// What the round has counted of a member's attempts is nothing when the resource was declared since it was loaded.
	// The row of the resource is locked after that of the project, as a declaration does.
	saveMemberSQL = `
with ` + claimedProjectSQL + `, loaded as (
    select m.declarations = $16 as is_current from claimed c join managed m on m.project_id = c.project_id and m.id = $4
    for share of m
), saved as (
    insert into managed_members as x (project_id, id, managed_id, ordinal, revision, object_id, status, reason,
                                      attempts, retry_at, missed_at, written, writes, was_ready, may_have_data,
                                      is_requested, is_waiting, user_data, is_rebuilt, create_calls)
    select project_id, $3, $4, $5, $6, $7, $8, $9, case when is_current then $10 else 0 end,
           case when is_current then $11::timestamptz end, $12, $13, case when is_current then $14 else 0 end, $15, $17,
           $18, $19, $20, $21, $22
    from claimed left join loaded on true
    on conflict (project_id, id) do update
    set ordinal = excluded.ordinal, revision = excluded.revision, object_id = excluded.object_id,
        status = excluded.status, reason = excluded.reason, attempts = excluded.attempts, retry_at = excluded.retry_at,
        missed_at = excluded.missed_at, written = excluded.written, writes = excluded.writes,
        was_ready = excluded.was_ready, may_have_data = excluded.may_have_data, user_data = excluded.user_data,
        is_rebuilt = excluded.is_rebuilt, create_calls = excluded.create_calls,
        is_requested = excluded.is_requested, is_waiting = excluded.is_waiting,
        node = case when x.object_id = excluded.object_id then x.node else '' end, updated_at = clock_timestamp()
    where (x.ordinal, x.revision, x.object_id, x.status, x.reason, x.attempts, x.retry_at, x.missed_at, x.written,
           x.writes, x.was_ready, x.may_have_data, x.is_requested, x.is_waiting, x.user_data,
           x.is_rebuilt, x.create_calls)
          is distinct from (excluded.ordinal, excluded.revision, excluded.object_id, excluded.status, excluded.reason,
           excluded.attempts, excluded.retry_at, excluded.missed_at, excluded.written, excluded.writes,
           excluded.was_ready, excluded.may_have_data, excluded.is_requested, excluded.is_waiting, excluded.user_data,
           excluded.is_rebuilt, excluded.create_calls)
)
select count(*) from claimed`

	deleteMemberSQL = `
with ` + claimedProjectSQL + `, deleted as (
    delete from managed_members x using claimed c where x.project_id = c.project_id and x.id = $3
)
select count(*) from claimed`
)

// HoldsProject is domain.ErrFenced when another replica has claimed the project since.
func (s Managed) HoldsProject(ctx context.Context, claim domain.Claim, projectID string) error {
	return fenced(queryValue[int64](ctx, s.DB.pool, "with "+claimedProjectSQL+" select count(*) from claimed",
		projectID, claim.ID))
}

// SaveMember stores a member of a resource, or what has changed of it: its ordinal, revision, object, status, reason,
// attempts, retry time, MissedAt, last change, and what is known of it. Its node is what RecordNodes says. Attempts,
// retry time and the number of changes begin again at zero when the resource was declared since the member was loaded.
// It is domain.ErrFenced when another replica has claimed the project since, and domain.ErrChanged when its resource or
// its revision is deleted.
func (s Managed) SaveMember(ctx context.Context, claim domain.Claim, projectID string, m domain.Member) error {
	err := fenced(write(ctx, s.DB, queryValue[int64], saveMemberSQL, projectID, claim.ID, m.ID, m.ManagedID, m.Ordinal,
		m.Revision, m.ObjectID, m.Status, m.Reason, m.Attempts, orNull(m.RetryAt), orNull(m.MissedAt), m.Written,
		m.Writes, m.WasReady, m.Declarations, m.MayHaveData, m.IsRequested, m.IsWaiting, m.UserData, m.IsRebuilt,
		m.CreateCalls))
	if sqlState(err) == stateForeignKey {
		return domain.ErrChanged
	}
	return err
}

// DeleteMember deletes a member, whose object must be deleted. Errors are those of SaveMember.
func (s Managed) DeleteMember(ctx context.Context, claim domain.Claim, projectID string, id uuid.UUID) error {
	return fenced(queryValue[int64](ctx, s.DB.pool, deleteMemberSQL, projectID, claim.ID, id))
}

const removeManagedSQL = `
with after as (
    update managed m set seq = seq + 1, updated_at = clock_timestamp()
    where project_id = $1 and id = $2 and version = $3 and request = 'delete'
    returning *
), event as (` + managedEventSQL + ` (select project_id, id, seq, updated_at, kind, name, 'deleted' as status,
        status as previous_status, '' as reason, revision, observed_revision, actor from after) gone)
select count(*) from after`

// Remove deletes a resource that is being deleted and has nothing left in OpenStack, with an event of the status
// deleted. Its connection ends when no other resource has it. Errors are those of SaveStatus.
func (s Managed) Remove(ctx context.Context, claim domain.Claim, m domain.Managed) error {
	return s.DB.change(ctx, func(tx pgx.Tx) error {
		locked, err := queryValue[int64](ctx, tx, lockClaimedProjectSQL, m.ProjectID, claim.ID)
		if err := fenced(locked, err); err != nil {
			return err
		}
		removed, err := queryValue[int64](ctx, tx, removeManagedSQL, m.ProjectID, m.ID, m.Version)
		if err == nil && removed == 0 {
			err = domain.ErrChanged
		}
		if err != nil {
			return err
		}
		if _, err := exec(ctx, tx, rememberOrphansSQL, m.ProjectID, m.ID); err != nil {
			return err
		}
		if _, err := exec(ctx, tx, "delete from managed where project_id = $1 and id = $2", m.ProjectID,
			m.ID); err != nil {
			return err
		}
		return endUnusedConnections(ctx, tx, m.ProjectID)
	})
}

const recordNodesSQL = `
update managed_members x set node = seen.node
from unnest($1::text[], $2::text[]) as seen(id, node)
where x.object_id = seen.id and x.object_id <> '' and x.node <> seen.node`

// RecordNodes stores on which host servers run, by their ids, where they are members of a resource.
func (s Managed) RecordNodes(ctx context.Context, byServer map[string]string) error {
	ids, nodes := make([]string, 0, len(byServer)), make([]string, 0, len(byServer))
	for id, node := range byServer {
		ids, nodes = append(ids, id), append(nodes, node)
	}
	_, err := exec(ctx, s.DB.pool, recordNodesSQL, ids, nodes)
	return err
}

const (
	// The event is written with the row, so it is one.
	saveUnexpectedSQL = `
with ` + claimedProjectSQL + `, given as materialized (
    select * from jsonb_to_recordset($3) as g (object_id text, name text, provider text, region text)
), found as (
    insert into unexpected_objects (project_id, object_id, provider, region, name, found_at)
    select c.project_id, g.object_id, g.provider, g.region, g.name, clock_timestamp() from claimed c, given g
    on conflict do nothing
), reported as (
    update unexpected_objects u set reported_at = clock_timestamp() from claimed c, given g
    where u.project_id = c.project_id and u.object_id = g.object_id and not u.is_orphan and u.reported_at is null
      and u.found_at <= clock_timestamp() - $4::interval
    returning u.*
), event as (
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, object_id,
           1 + coalesce((select max(seq) from events e
                         where e.project_id = reported.project_id and e.subject = reported.object_id), 0),
           '` + domain.UnexpectedObjectEvent + `', reported_at,
           jsonb_strip_nulls(jsonb_build_object(
               'object_id', object_id, 'name', name, 'provider', provider, 'region', nullif(region, '')))
    from reported
)
select object_id from reported
union all
select u.object_id from claimed c, given g, unexpected_objects u
where u.project_id = c.project_id and u.object_id = g.object_id and u.reported_at is not null`

	// Only listings that a scan has read say which objects are missed: $3. $4 are the ids that they have shown.
	forgetUnexpectedSQL = `
with ` + claimedProjectSQL + `, listed as materialized (
    select * from jsonb_to_recordset($3) as l (provider text, region text)
), known as (
    select u.object_id, u.missed_at, u.object_id = any($4) as is_seen
    from claimed c join unexpected_objects u on u.project_id = c.project_id
    join listed l on l.provider = u.provider and l.region = u.region
), seen as (
    update unexpected_objects u
    set missed_at = case when k.is_seen then null else clock_timestamp() end
    from known k where u.project_id = $1 and u.object_id = k.object_id and k.is_seen = (k.missed_at is not null)
), forgotten as (
    delete from unexpected_objects where project_id = $1 and object_id in (
        select object_id from known where not is_seen and missed_at <= clock_timestamp() - $5::interval
        order by missed_at limit 1000)
)
select count(*) from claimed`

	// rememberOrphansSQL is done before the members are deleted.
	rememberOrphansSQL = `
insert into unexpected_objects (project_id, object_id, provider, region, name, is_orphan, found_at)
select m.project_id, x.object_id, m.provider, coalesce(m.schedule->>'region', ''), m.name, true, clock_timestamp()
from managed m join managed_members x on x.project_id = m.project_id and x.managed_id = m.id
where m.project_id = $1 and m.id = $2 and m.orphan and x.object_id <> ''
on conflict (project_id, object_id) do update set is_orphan = true`
)

// ForgetUnexpected deletes what SaveUnexpected has recorded of objects that have not been found for longer than after,
// some in a call: listed are the providers and regions whose objects were read, and found are those with a mark. An
// object that is found again is recorded, and reported, as a new one. It is domain.ErrFenced when another replica has
// claimed the project since.
func (s Managed) ForgetUnexpected(
	ctx context.Context, claim domain.Claim, projectID string, listed []domain.UnexpectedObject, found []string,
	after time.Duration,
) error {
	return fenced(write(ctx, s.DB, queryValue[int64], forgetUnexpectedSQL, projectID, claim.ID, orEmpty(listed),
		orEmpty(found), after))
}

// SaveUnexpected records objects that carry a mark and belong to no member. One that was recorded longer ago than
// after has one event. It returns the ids of those that an event has reported.
func (s Managed) SaveUnexpected(
	ctx context.Context, claim domain.Claim, projectID string, found []domain.UnexpectedObject, after time.Duration,
) (reported []string, err error) {
	return write(ctx, s.DB, queryColumn[string], saveUnexpectedSQL, projectID, claim.ID, orEmpty(found), after)
}

// statusBatch bounds the resources of one statement: it keeps the project's row locked for some milliseconds.
const statusBatch = 500

// saveStatusSQL has a row for each stored resource, one of nulls when none is stored, and none without the claim.
// Nothing is written of a resource that does not differ.
const saveStatusSQL = `
with ` + claimedProjectSQL + `, given as materialized (
    select * from jsonb_to_recordset($3) as g (id uuid, version bigint, request text, status text, reason text,
        conditions jsonb, drift jsonb, observed_revision integer, next_at timestamptz, loaded_next_at timestamptz)
), before as (
    select m.id as old_id, m.version as old_version, m.status as old_status, m.observed_revision as old_revision
    from managed m, claimed c where m.project_id = c.project_id and m.id in (select id from given)
    order by m.id
    for no key update of m
), after as (
    update managed m
    set request = g.request, status = g.status, reason = g.reason, conditions = g.conditions, drift = g.drift,
        observed_revision = g.observed_revision,
        next_at = case when m.next_at is distinct from g.loaded_next_at then m.next_at else g.next_at end,
        updated_at = clock_timestamp(),
        seq = m.seq + ((b.old_status, b.old_revision) <> (g.status, g.observed_revision))::int
    from before b join given g on g.id = b.old_id
    where m.project_id = $1 and m.id = b.old_id and m.version = g.version
      and ((m.request, m.status, m.reason, m.conditions, m.drift, m.observed_revision)
           is distinct from (g.request, g.status, g.reason, g.conditions, g.drift, g.observed_revision)
           or m.next_at is not distinct from g.loaded_next_at and m.next_at is distinct from g.next_at)
    returning m.*, b.old_status as previous_status,
              (b.old_status, b.old_revision) <> (m.status, m.observed_revision) as notify
), event as (` + managedEventSQL + ` after where notify
), pruned as (
    delete from managed_revisions r using after m
    where m.notify and m.observed_revision = m.revision and ` + prunableRevision + `
)
select b.old_id as id, b.old_version as version, a.seq, a.updated_at
from claimed left join before b on true left join after a on a.id = b.old_id`

// statusRow is what SaveStatus writes of a resource.
type statusRow struct {
	ID               uuid.UUID             `json:"id"`
	Version          int64                 `json:"version"`
	Request          domain.ManagedRequest `json:"request"`
	Status           domain.ManagedStatus  `json:"status"`
	Reason           string                `json:"reason"`
	Conditions       []domain.Condition    `json:"conditions"`
	Drift            []domain.Drift        `json:"drift"`
	ObservedRevision int                   `json:"observed_revision"`
	NextAt           *time.Time            `json:"next_at"`
	LoadedNextAt     *time.Time            `json:"loaded_next_at"`
}

// SaveStatus writes what reconcile-managed changes of resources of one project, some hundred in a statement: request,
// status, reason, conditions, drift, observed_revision and NextAt. Nothing is written of one that has not changed,
// and no NextAt over a later one. An event reports a new status or observed revision; with the latter, old revisions
// that no member has any more are deleted. Each resource given gets its new Seq and UpdatedAt. It is domain.ErrFenced
// when another replica has claimed the project since. It is domain.ErrChanged when the user has changed some of them
// since they were loaded: then the others are written, and the project is due immediately.
func (s Managed) SaveStatus(ctx context.Context, claim domain.Claim, all ...*domain.Managed) error {
	var changed error
	for batch := range slices.Chunk(all, statusBatch) {
		isSame, err := s.saveStatuses(ctx, claim, batch)
		if err != nil {
			return err
		}
		if !isSame {
			changed = domain.ErrChanged
		}
	}
	return changed
}

// saveStatuses writes one batch. isSame is false when the user has changed some of it.
func (s Managed) saveStatuses(ctx context.Context, claim domain.Claim, all []*domain.Managed) (isSame bool, err error) {
	rows := make([]statusRow, len(all))
	for n, m := range all {
		rows[n] = statusRow{
			ID: m.ID, Version: m.Version, Request: m.Request, Status: m.Status, Reason: m.Reason,
			Conditions: orEmpty(m.Conditions), Drift: orEmpty(m.Drift), ObservedRevision: m.ObservedRevision,
			NextAt: orNull(m.NextAt), LoadedNextAt: orNull(m.LoadedNextAt),
		}
	}
	type saved struct {
		ID        *uuid.UUID
		Version   *int64
		Seq       *int64     // null: nothing was written
		UpdatedAt *time.Time // null with Seq
	}
	found, err := write(ctx, s.DB, queryAll[saved], saveStatusSQL, all[0].ProjectID, claim.ID, rows)
	if err := fenced(int64(len(found)), err); err != nil {
		return false, err
	}
	stored := make(map[uuid.UUID]saved, len(found))
	for _, one := range found {
		if one.ID != nil {
			stored[*one.ID] = one
		}
	}
	isSame = true
	for _, m := range all {
		one, ok := stored[m.ID]
		if !ok || *one.Version != m.Version {
			isSame = false
		} else if one.Seq != nil {
			m.Seq, m.UpdatedAt = *one.Seq, *one.UpdatedAt
		}
	}
	return isSame, nil
}
