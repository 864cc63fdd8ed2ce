package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const trackedSQL = `
select coalesce(server_id, ''), id, state, origin, connection_id from instances
where project_id = $1 and disconnected_at is null and not remote and server_id = any($2)`

const listTrackedSQL = `
select coalesce(server_id, ''), id, state, origin, connection_id from instances
where project_id = $1 and disconnected_at is null and not remote and server_id is not null and state <> 'deleted'
  and ($2 = '' or (created_at, id) < (select created_at, id from instances where project_id = $1 and server_id = $2))
order by created_at desc, id desc limit $3`

// ListTracked lists a page of the project's tracked servers, the newest instance first. marker is the id of the last
// server already seen ("" = none). A marker that no instance has or had is Invalid.
func (i Instances) ListTracked(ctx context.Context, projectID, marker string, limit int) ([]domain.Tracked, error) {
	found, err := i.tracked(ctx, listTrackedSQL, projectID, marker, limit)
	if err != nil || len(found) > 0 || marker == "" {
		return found, err
	}
	var known bool
	err = i.DB.pool.QueryRow(ctx, "select exists (select from instances where project_id = $1 and server_id = $2)", projectID, marker).Scan(&known)
	if err == nil && !known {
		return nil, apperr.Malformed("marker", "the id of a tracked server, as the answer's next has it", marker)
	}
	return nil, classify(err)
}

// Tracked finds which of the project's servers are tracked, by server id.
func (i Instances) Tracked(ctx context.Context, projectID string, serverIDs []string) (map[string]domain.Tracked, error) {
	found, err := i.tracked(ctx, trackedSQL, projectID, serverIDs)
	if err != nil {
		return nil, err
	}
	tracked := make(map[string]domain.Tracked, len(found))
	for _, t := range found {
		tracked[t.ServerID] = t
	}
	return tracked, nil
}

func (i Instances) tracked(ctx context.Context, sql string, args ...any) ([]domain.Tracked, error) {
	type row struct {
		ServerID     string
		ID           uuid.UUID
		State        domain.InstanceState
		Origin       string
		ConnectionID *uuid.UUID
	}
	rows, _ := i.DB.pool.Query(ctx, sql, args...)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, classify(err)
	}
	tracked := make([]domain.Tracked, len(found))
	for n, r := range found {
		tracked[n] = domain.Tracked{ID: r.ID, ServerID: r.ServerID, State: r.State, Origin: r.Origin, ConnectionID: r.ConnectionID}
	}
	return tracked, nil
}

// ListManaged lists a page of the instances with a server that are managed through the connection, the newest first;
// marker is the id of the last server already seen ("" = none). Of each server is known what was last seen of it.
func (i Instances) ListManaged(ctx context.Context, filter domain.Filter, limit int, marker string) ([]domain.Instance, error) {
	rows, _ := i.DB.pool.Query(ctx, "select "+instanceColumns+` from instances
where project_id = $1 and connection_id = $2 and disconnected_at is null and server_id is not null and state <> 'deleted'
  and ($3 = '' or (created_at, id) < (select created_at, id from instances where project_id = $1 and connection_id = $2 and server_id = $3))
order by created_at desc, id desc limit $4`, filter.ProjectID, filter.ConnectionID, marker, limit)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Instance])
	return found, classify(err)
}

// Find finds instances by their own ids or their servers', which are UUIDs, in the order of ids. One that is not found
// has the zero ID. A project's own look finds those in its cloud; a connection's finds what is managed through it,
// wherever that is.
func (i Instances) Find(ctx context.Context, filter domain.Filter, ids []string) ([]domain.Instance, error) {
	rows, _ := i.DB.pool.Query(ctx, "select "+instanceColumns+` from instances
where project_id = $1 and ($2::uuid is null and not remote or connection_id = $2) and disconnected_at is null
  and (server_id = any($3) or id = any($3::text[]::uuid[]))`,
		filter.ProjectID, orNullID(filter.ConnectionID), ids)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Instance])
	if err != nil {
		return nil, classify(err)
	}
	found := make([]domain.Instance, len(ids))
	for n, id := range ids { // a server's id goes first, if somebody gave one to another server's instance
		for _, one := range all {
			if one.ServerID == id || one.ID.String() == id && found[n].ID == uuid.Nil {
				found[n] = one
			}
		}
	}
	return found, nil
}

const agentSQL = `
select id, image, created_at, ready_at from deployments
where project_id = $1 and instance_id = $2 order by created_at desc limit 1`

// Agent is what was last deployed to the instance; nil when nothing was.
func (i Instances) Agent(ctx context.Context, projectID string, instance uuid.UUID) (*domain.Agent, error) {
	rows, _ := i.DB.pool.Query(ctx, agentSQL, projectID, instance)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Agent])
	if err != nil || len(found) == 0 {
		return nil, classify(err)
	}
	return &found[0], nil
}
