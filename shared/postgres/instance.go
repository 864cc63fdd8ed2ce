package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Instances are the tracked servers.
type Instances struct{ DB *DB }

const trackedSQL = `
select server_id, id, state, origin from instances where project_id = $1 and server_id = any($2)`

// Tracked finds which of the project's servers are tracked, by server id.
func (i Instances) Tracked(ctx context.Context, projectID string, serverIDs []string) (map[string]domain.Tracked, error) {
	type row struct {
		ServerID string
		ID       uuid.UUID
		State    domain.InstanceState
		Origin   string
	}
	rows, _ := i.DB.pool.Query(ctx, trackedSQL, projectID, serverIDs)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, classify(err)
	}
	tracked := make(map[string]domain.Tracked, len(found))
	for _, r := range found {
		tracked[r.ServerID] = domain.Tracked{ID: r.ID, State: r.State, Origin: r.Origin}
	}
	return tracked, nil
}
