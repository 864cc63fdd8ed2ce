package postgres

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// A lease that is stored locks its connection, too (checkShared), and is then in the snapshot of sharingSQL.
	lockConnectionSQL = `
select status = 'active' from connections where project_id = $1 and id = $2 for no key update`

	sharingSQL = `
select id, ends_at, on_end from leases
where project_id = $1 and connection_id = $2 and shares_connection and status not in ('ended', 'cancelled') order by id`

	shownLeases = 10 // in an error
)

// checkSharing rejects what is about to be done to an active connection if it breaks an open lease that names it.
func checkSharing(
	ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID, breaks func(domain.Lease) bool,
) error {
	isActive, err := queryValue[bool](ctx, tx, lockConnectionSQL, projectID, id)
	if err != nil || !isActive {
		return orNotFound(err, "there is no connection %s", id)
	}
	leases, err := queryAll[domain.Lease](ctx, tx, sharingSQL, projectID, id)
	if err != nil {
		return err
	}
	var broken []string
	for _, lease := range leases {
		if breaks(lease) {
			broken = append(broken, lease.ID.String())
		}
	}
	if len(broken) == 0 {
		return nil
	}
	return apperr.New(apperr.Conflict, "leases need the connection until they end: change or end them first: %s",
		strings.Join(broken[:min(len(broken), shownLeases)], ", "))
}

// Delete ends a connection at the request of its project. deleted is false when it was deleted already. It is a
// Conflict while an open lease names the connection.
func (c Connections) Delete(ctx context.Context, projectID string, id uuid.UUID) (deleted bool, err error) {
	err = c.DB.changeTx(ctx, func(tx pgx.Tx) error {
		if err := checkSharing(ctx, tx, projectID, id, func(domain.Lease) bool { return true }); err != nil {
			return err
		}
		n, err := queryValue[int](ctx, tx, endConnectionSQL, projectID, id, domain.ConnectionDeleted,
			"it was deleted", false, 0, false, domain.ActorFrom(ctx))
		deleted = n == 1
		return err
	})
	return deleted, err
}

// checkShared rejects a lease that its connection does not outlast or permit. The connection stays as it is until the
// lease is stored.
func checkShared(ctx context.Context, tx pgx.Tx, lease domain.Lease, isShared bool) error {
	found, err := queryOne[struct{ Lasts, Permits bool }](ctx, tx, sharedSQL, lease.ProjectID, lease.ConnectionID,
		lease.EndsAt, lease.Permissions())
	switch {
	case err != nil:
		return err
	case !found.Lasts:
		return endsBefore(isShared)
	case !found.Permits:
		return apperr.New(apperr.Conflict, "the connection does not permit what the lease needs any more")
	}
	return nil
}

const sharedSQL = `
select status = 'active' and expires_at >= $3 as lasts, actions @> $4::text[] as permits
from connections where project_id = $1 and id = $2 for share`
