package postgres

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	trackedColumns = "coalesce(server_id, '') as server_id, id, state, origin, connection_id, lease_id"

	trackedSQL = `
select ` + trackedColumns + ` from instances
where project_id = $1 and disconnected_at is null and not remote and server_id = any($2)`

	listTrackedSQL = `
select ` + trackedColumns + ` from instances
where project_id = $1 and disconnected_at is null and not remote and server_id is not null and state <> 'deleted'
  and ($2 = '' or (created_at, id) < (select created_at, id from instances where project_id = $1 and server_id = $2))
order by created_at desc, id desc limit $3`

	listManagedSQL = `
select ` + instanceColumns + ` from instances
where project_id = $1 and connection_id = $2 and disconnected_at is null and server_id is not null
  and state <> 'deleted'
  and ($3 = '' or (created_at, id) < (select created_at, id from instances
                                      where project_id = $1 and connection_id = $2 and server_id = $3))
order by created_at desc, id desc limit $4`

	findInstancesSQL = `
select ` + instanceColumns + ` from instances
where project_id = $1 and ($2::uuid is null and not remote or connection_id = $2) and disconnected_at is null
  and (server_id = any($3) or id = any($3::text[]::uuid[]))`
)

// ListTracked lists a page of the project's tracked servers, the newest instance first. marker is the id of the last
// server of the previous page ("" = none). A marker that no instance has or had is Invalid.
func (i Instances) ListTracked(
	ctx context.Context, projectID, marker string, limit int,
) ([]domain.Tracked, error) {
	found, err := queryAll[domain.Tracked](ctx, i.DB.pool, listTrackedSQL, projectID, marker, limit)
	if err != nil || len(found) > 0 || marker == "" {
		return found, err
	}
	known, err := queryValue[bool](ctx, i.DB.pool,
		"select exists (select from instances where project_id = $1 and server_id = $2)", projectID, marker)
	if err == nil && !known {
		return nil, apperr.Malformed("marker", "the id of a tracked server, as in the answer's next", marker)
	}
	return nil, err
}

// Tracked finds which of the project's servers are tracked, by server id.
func (i Instances) Tracked(
	ctx context.Context, projectID string, serverIDs []string,
) (map[string]domain.Tracked, error) {
	found, err := queryAll[domain.Tracked](ctx, i.DB.pool, trackedSQL, projectID, serverIDs)
	if err != nil {
		return nil, err
	}
	tracked := make(map[string]domain.Tracked, len(found))
	for _, t := range found {
		tracked[t.ServerID] = t
	}
	return tracked, nil
}

// ListManaged lists a page of the instances with a server that are managed through the connection, the newest first, as
// they were last seen. marker is the id of the last server of the previous page ("" = none).
func (i Instances) ListManaged(
	ctx context.Context, filter domain.Filter, limit int, marker string,
) ([]domain.Instance, error) {
	return queryAll[domain.Instance](ctx, i.DB.pool, listManagedSQL, filter.ProjectID, filter.ConnectionID, marker,
		limit)
}

// Find finds instances by their own ids or their servers', which are UUIDs, in the order of ids. One that is not found
// has the zero ID. A filter without a connection matches instances in this cloud; with a connection those that are
// managed through it, in any cloud.
func (i Instances) Find(ctx context.Context, filter domain.Filter, ids []string) ([]domain.Instance, error) {
	all, err := queryAll[domain.Instance](ctx, i.DB.pool, findInstancesSQL, filter.ProjectID,
		orNullID(filter.ConnectionID), ids)
	if err != nil {
		return nil, err
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
select id as deployment_id, image, created_at as deployed_at, ready_at from deployments
where project_id = $1 and instance_id = $2 order by created_at desc limit 1`

// Agent is what was last deployed to the instance; nil when nothing was.
func (i Instances) Agent(ctx context.Context, projectID string, instance uuid.UUID) (*domain.Agent, error) {
	agent, found, err := queryFound[domain.Agent](ctx, i.DB.pool, agentSQL, projectID, instance)
	if err != nil || !found {
		return nil, err
	}
	return &agent, nil
}

// Users of a connection see no other actors of its project.
const historySQL = `
select e.project_id, e.subject, e.seq, e.type, e.at,
       (case when e.project_id = $5 or e.data #>> '{actor,project_id}' = $5
             then e.data else e.data - 'actor' end)::text as data
from events e
where e.project_id = $1 and e.subject = $2::text and e.data->>'instance_id' = $2::text
  and ($3::uuid is null or e.connection_id = $3) and ($4::bigint = 0 or e.seq < $4)
order by e.seq desc limit $6`

// History reads the events of an instance that are still kept, the newest first: those before a number (0 = all), and
// with a connection (not the zero id) only those of the connection. reader is the reader's project.
func (i Instances) History(
	ctx context.Context, projectID string, instance, connection uuid.UUID, before int64, limit int, reader string,
) ([]domain.Event, error) {
	return queryAll[domain.Event](ctx, i.DB.pool, historySQL, projectID, instance.String(), orNullID(connection),
		before, reader, limit)
}
