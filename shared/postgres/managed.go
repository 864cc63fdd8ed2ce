package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Managed are the declared resources of projects with their revisions and members, and what reconcile-managed does with
// them. One replica at a time works on a project (claim.go). Each writer locks the row of the project first.
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

const (
	// A delegation acts with the roles that its resources require, and no others.
	managedConnectionSQL = "select " + connectionColumns + ` from connections
where project_id = $1 and user_id = $2 and managed and status = 'active'
  and acts_as->'roles' <@ to_jsonb($3::text[]) and acts_as->'roles' @> to_jsonb($3::text[]) and expires_at >= $4
order by expires_at desc limit 1`

	isManagedConnectionSQL = `
select exists (select from connections where project_id = $1 and id = $2 and managed and status = 'active'
               and expires_at > clock_timestamp())`

	// A user's new delegation also replaces those that end earlier, or have fewer roles than their kinds require now.
	renewManagedSQL = `
update managed m set connection_id = new.id
from connections new join connections old
  on old.project_id = new.project_id and old.user_id = new.user_id and old.managed and old.id <> new.id
     and old.acts_as->'roles' <@ (new.acts_as->'roles')
where new.project_id = $1 and new.id = $2 and m.project_id = $1 and m.connection_id = old.id and m.kind = any($3)`

	// What could not be looked at with the earlier one is, now.
	scanRenewedSQL = `
update managed_projects set scan_at = clock_timestamp()
where project_id = $1 and exists (select from managed where project_id = $1 and connection_id = $2)`

	unusedConnectionsSQL = `
select c.id from connections c
where c.project_id = $1 and c.managed and c.status = 'active'
  and not exists (select from managed m where m.project_id = $1 and m.connection_id = c.id)`

	// One statement, so that a renewal meanwhile shows all or nothing.
	connectionsOfManagedSQL = "select " + connectionColumns + `, m.resources
from connections c join (
    select connection_id, array_agg(id) as resources from managed where project_id = $1 group by connection_id
) m on m.connection_id = c.id
where c.project_id = $1`
)

// Delegation finds what a user has delegated for managed resources of a project, if it lasts until then and acts with
// these roles.
func (s Managed) Delegation(
	ctx context.Context, projectID, userID string, roles []string, until time.Time,
) (found domain.Connection, ok bool, err error) {
	return findDelegation(ctx, s.DB.pool, projectID, userID, roles, until)
}

func findDelegation(
	ctx context.Context, db querier, projectID, userID string, roles []string, until time.Time,
) (found domain.Connection, ok bool, err error) {
	return queryFound[domain.Connection](ctx, db, managedConnectionSQL, projectID, userID, orEmpty(roles), until)
}

// IsDelegated reports whether a connection of the project's resources can still be used.
func (s Managed) IsDelegated(ctx context.Context, projectID string, id uuid.UUID) (bool, error) {
	return queryValue[bool](ctx, s.DB.pool, isManagedConnectionSQL, projectID, id)
}

// Connections reads the connection of each of the project's resources, with its trust, whatever its status is, by the
// resource's id.
func (s Managed) Connections(ctx context.Context, projectID string) (map[uuid.UUID]*domain.Connection, error) {
	type shared struct {
		domain.Connection

		Resources []uuid.UUID
	}
	found, err := queryAll[shared](ctx, s.DB.pool, connectionsOfManagedSQL, projectID)
	byResource := map[uuid.UUID]*domain.Connection{}
	for n := range found {
		for _, id := range found[n].Resources {
			byResource[id] = &found[n].Connection
		}
	}
	return byResource, err
}

// delegate returns the connection that a declaration uses, and stores a new one unless another request has done so
// meanwhile. It is domain.ErrChanged when the stored one has ended. The project's row is locked.
func delegate(ctx context.Context, tx pgx.Tx, projectID string, d domain.ManagedDelegation) (uuid.UUID, error) {
	if d.New == nil {
		isActive, err := queryValue[bool](ctx, tx, isManagedConnectionSQL, projectID, d.ConnectionID)
		if err == nil && !isActive {
			err = domain.ErrChanged
		}
		return d.ConnectionID, err
	}
	found, ok, err := findDelegation(ctx, tx, projectID, d.New.UserID, d.New.ActsAs.Roles, d.Until)
	if err != nil || ok {
		return found.ID, err
	}
	stored, err := insertConnection(ctx, tx, *d.New)
	if err != nil {
		return stored.ID, err
	}
	if _, err := exec(ctx, tx, renewManagedSQL, projectID, stored.ID, orEmpty(d.Kinds)); err != nil {
		return stored.ID, err
	}
	_, err = exec(ctx, tx, scanRenewedSQL, projectID, stored.ID)
	return stored.ID, err
}

// endUnusedConnections ends the delegations that no resource has any more. run-connections revokes their trusts.
func endUnusedConnections(ctx context.Context, tx pgx.Tx, projectID string) error {
	unused, err := queryColumn[uuid.UUID](ctx, tx, unusedConnectionsSQL, projectID)
	if err != nil {
		return err
	}
	for _, id := range unused {
		if err := endConnection(ctx, tx, projectID, id, "no managed resource has it any more"); err != nil {
			return err
		}
	}
	return nil
}
