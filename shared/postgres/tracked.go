package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const trackedSQL = `
select coalesce(server_id, ''), id, state, origin from instances where project_id = $1 and server_id = any($2)`

const namedSQL = trackedSQL + `
union all
select coalesce(server_id, ''), id, state, origin from instances where project_id = $1 and id = any($2::text[]::uuid[])`

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

// Named finds the project's instances that ids stand for, which are UUIDs: of a server, or of the instance itself. It
// gives them by either.
func (i Instances) Named(ctx context.Context, projectID string, ids []string) (map[string]domain.Tracked, error) {
	found, err := i.tracked(ctx, namedSQL, projectID, ids)
	if err != nil {
		return nil, err
	}
	named := make(map[string]domain.Tracked, 2*len(found))
	for _, t := range found {
		named[t.ID.String()] = t
	}
	for _, t := range found { // a server's id goes first, if somebody gave one to another server's instance
		if t.ServerID != "" {
			named[t.ServerID] = t
		}
	}
	return named, nil
}

func (i Instances) tracked(ctx context.Context, sql, projectID string, ids []string) ([]domain.Tracked, error) {
	type row struct {
		ServerID string
		ID       uuid.UUID
		State    domain.InstanceState
		Origin   string
	}
	rows, _ := i.DB.pool.Query(ctx, sql, projectID, ids)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, classify(err)
	}
	tracked := make([]domain.Tracked, len(found))
	for n, r := range found {
		tracked[n] = domain.Tracked{ID: r.ID, ServerID: r.ServerID, State: r.State, Origin: r.Origin}
	}
	return tracked, nil
}
