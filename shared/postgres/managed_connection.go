package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
