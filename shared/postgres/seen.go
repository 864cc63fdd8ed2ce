package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// What is older than what is stored, and what was seen of a connection that has ended meanwhile, is dropped. The connection's row is
// not locked for that: one that ends at the same moment leaves a row that nobody is shown.
const markSeenSQL = `
insert into connection_resources (connection_id, project_id, as_of, seen)
select c.id, c.project_id, clock_timestamp() - $3::interval, $4
from connections c where c.project_id = $1 and c.id = $2 and c.status = 'active'
on conflict (connection_id) do update set as_of = excluded.as_of, seen = excluded.seen
where connection_resources.project_id = $1 and connection_resources.as_of < excluded.as_of`

// MarkSeen stores what can be ordered through a connection. took is how long ago it was begun to be read.
func (d Delegations) MarkSeen(ctx context.Context, projectID string, id uuid.UUID, took time.Duration, seen domain.SeenResources) error {
	_, err := d.DB.pool.Exec(ctx, markSeenSQL, projectID, id, took, seen)
	return classify(err)
}

// Seen is what could be ordered through a connection when that was read last, and how long ago that is; found is false when it never was.
// What may be used of it is domain.SeenResources.Allowed.
func (c Connections) Seen(
	ctx context.Context, projectID string, id uuid.UUID,
) (seen domain.SeenResources, age time.Duration, found bool, err error) {
	var now time.Time
	err = c.DB.pool.QueryRow(ctx, `
select seen, as_of, clock_timestamp() from connection_resources where project_id = $1 and connection_id = $2`, projectID, id).
		Scan(&seen, &seen.AsOf, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		return seen, 0, false, nil
	}
	seen.AsOf = seen.AsOf.UTC()
	return seen, max(0, now.Sub(seen.AsOf)), err == nil, classify(err)
}
