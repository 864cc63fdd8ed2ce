package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Managed are the declared resources of projects with their revisions and members, and what reconcile-managed does with
// them. One replica at a time works on a project (claim.go). Whoever writes locks the row of the project first.
type Managed struct{ DB *DB }

const (
	managedColumns = `
m.id, m.project_id, p.domain_id, m.user_id, m.connection_id, m.kind, m.name, m.provider, m.flavor, m.labels, m.schedule,
m.repair, m.max_revisions, m.revision, m.observed_revision, m.request, m.orphan, m.status, m.reason, m.conditions,
m.drift, m.next_at, m.next_at as loaded_next_at, m.actor, m.version, m.declarations, m.seq, m.created_at, m.updated_at,
r.spec, r.digest`

	managedTables = `
from managed m join managed_projects p on p.project_id = m.project_id
join managed_revisions r on r.project_id = m.project_id and r.managed_id = m.id and r.number = m.revision`

	memberColumns = `
id, managed_id, ordinal, revision, object_id, status, reason, node, attempts, retry_at, missed_at, created_at,
updated_at, written, writes, was_ready, may_have_data, is_requested, is_waiting, user_data, is_rebuilt,
create_calls`

	// managedEventSQL writes the event of a resource, from rows of managed with previous_status.
	managedEventSQL = `
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, id::text, seq, '` + domain.ManagedEvent + `', updated_at, jsonb_strip_nulls(jsonb_build_object(
               'managed_id', id, 'kind', kind, 'name', name, 'status', status, 'previous_status', previous_status,
               'reason', nullif(reason, ''), 'revision', revision, 'observed_revision', observed_revision,
               'actor', actor))
    from`
)

// Now is the database's clock.
func (s Managed) Now(ctx context.Context) (time.Time, error) { return s.DB.Now(ctx) }

const getManagedSQL = "select " + managedColumns + managedTables + `
where m.project_id = $1 and m.kind = $2 and m.name = $3`

// Get reads a resource of the project with its spec and its members.
func (s Managed) Get(ctx context.Context, projectID string, kind domain.Kind, name string) (domain.Managed, error) {
	found, err := queryOne[domain.Managed](ctx, s.DB.pool, getManagedSQL, projectID, kind, name)
	if err != nil {
		return found, noManaged(err, kind, name)
	}
	return withMembers(ctx, s.DB.pool, found)
}

func noManaged(err error, kind domain.Kind, name string) error {
	return orNotFound(err, "the project has no %s %q", kind, name)
}

// Ids are version 7: the order of time.
const listDeclaredSQL = "select " + managedColumns + managedTables + `
where m.project_id = $1 and ($2 = '' or m.kind = $2) and m.labels @> $3
  and ($4 = '' or position(lower($4) in m.name) > 0)
  and (cardinality($5::text[]) = 0 or m.status = any($5::text[]))
  and not exists (select from jsonb_array_elements($8::jsonb) without where m.labels @> without)
  and m.id > $6 order by m.id limit $7`

// List reads a page of the project's resources with their specs and members, the oldest first.
func (s Managed) List(ctx context.Context, projectID string, q domain.ManagedQuery) ([]domain.Managed, error) {
	found, err := queryAll[domain.Managed](ctx, s.DB.pool, listDeclaredSQL, projectID, q.Kind, orEmptyMap(q.Labels),
		q.Name, orEmpty(q.Statuses), q.Marker, q.Limit, orEmpty(q.Without))
	if err != nil {
		return nil, err
	}
	return found, addMembers(ctx, s.DB.pool, projectID, found)
}

// withMembers is a resource with its members.
func withMembers(ctx context.Context, db querier, m domain.Managed) (domain.Managed, error) {
	one := []domain.Managed{m}
	err := addMembers(ctx, db, m.ProjectID, one)
	return one[0], err
}

const membersSQL = "select " + memberColumns + ` from managed_members
where project_id = $1 and managed_id = any($2) order by managed_id, ordinal, id`

// addMembers reads the members of a project's resources.
func addMembers(ctx context.Context, db querier, projectID string, resources []domain.Managed) error {
	if len(resources) == 0 {
		return nil
	}
	at, ids := map[uuid.UUID]int{}, make([]uuid.UUID, len(resources))
	for n, m := range resources {
		at[m.ID], ids[n] = n, m.ID
	}
	members, err := queryAll[domain.Member](ctx, db, membersSQL, projectID, ids)
	for _, member := range members {
		m := &resources[at[member.ManagedID]]
		m.Members = append(m.Members, member)
	}
	return err
}

const revisionsSQL = `
select number, flavor, spec, digest, labels, schedule, rolled_back, user_id, user_name, created_at
from managed_revisions where project_id = $1 and managed_id = $2 order by number desc`

// Revisions reads the revisions of a resource, the newest first, without their secrets.
func (s Managed) Revisions(ctx context.Context, projectID string, id uuid.UUID) ([]domain.Revision, error) {
	return queryAll[domain.Revision](ctx, s.DB.pool, revisionsSQL, projectID, id)
}

// lockManaged locks a resource until the transaction ends, and reads it. found is false when it is absent.
func lockManaged(
	ctx context.Context, tx pgx.Tx, projectID string, kind domain.Kind, name string,
) (stored domain.Managed, found bool, err error) {
	return queryFound[domain.Managed](ctx, tx, getManagedSQL+" for no key update of m", projectID, kind, name)
}
