package postgres

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	leaseOfReservationSQL = `select lease_id from reservations where project_id = $1 and id = $2`

	listLaunchableSQL = `
select r.id::text from reservations r join leases l on l.project_id = r.project_id and l.id = r.lease_id
where r.project_id = $1 and r.type = 'host' and r.status = 'active' and l.status <> 'ending' and r.is_open
order by l.ends_at desc, r.id limit 50`
)

// GetReservation reads a reservation of the project and its lease.
func (s Leases) GetReservation(
	ctx context.Context, projectID string, id uuid.UUID,
) (r domain.Reservation, of domain.Lease, err error) {
	lease, err := queryValue[uuid.UUID](ctx, s.DB.pool, leaseOfReservationSQL, projectID, id)
	if err != nil {
		return r, of, orNotFound(err, "unknown reservation %s", id)
	}
	if of, err = s.Get(ctx, projectID, lease); err != nil {
		return r, of, err
	}
	n := slices.IndexFunc(of.Reservations, func(r domain.Reservation) bool { return r.ID == id })
	if n >= 0 {
		r = of.Reservations[n]
	}
	return r, of, nil
}

// ListLaunchable lists the ids of the project's host reservations that servers can be launched on now, 50 at most.
func (s Leases) ListLaunchable(ctx context.Context, projectID string) ([]string, error) {
	return queryColumn[string](ctx, s.DB.pool, listLaunchableSQL, projectID)
}

// ListByIDs reads leases of the project without their reservations.
func (s Leases) ListByIDs(ctx context.Context, projectID string, ids []uuid.UUID) ([]domain.Lease, error) {
	return queryAll[domain.Lease](ctx, s.DB.pool,
		"select "+leaseColumns+" from leases where project_id = $1 and id = any($2)", projectID, ids)
}

// insertOrderLease stores the lease of a new order's instances.
func insertOrderLease(ctx context.Context, tx pgx.Tx, order domain.Order) error {
	if order.Lease == nil {
		return nil
	}
	_, err := createLease(ctx, tx, *order.Lease)
	return err
}
