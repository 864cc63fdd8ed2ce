package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const everTrackedSQL = `select exists (select from instances where project_id = $1 and server_id = $2)`

// Adopt stores an instance for a server that no instance has or had, with a lease of it. isNew is false when there is
// one: a server is adopted once, whatever its user does with its instance and its lease afterwards.
func (s Leases) Adopt(
	ctx context.Context, server domain.Instance, made domain.NewLease,
) (isNew bool, err error) {
	err = s.DB.changeTx(ctx, func(tx pgx.Tx) (err error) {
		isNew, err = adoptServer(ctx, tx, server, made)
		return err
	})
	return isNew && err == nil, err
}

func adoptServer(
	ctx context.Context, tx pgx.Tx, server domain.Instance, made domain.NewLease,
) (isNew bool, err error) {
	if _, err := tx.Exec(ctx, lockServerSQL, server.ProjectID, server.ServerID); err != nil {
		return false, err
	}
	isKnown, err := queryValue[bool](ctx, tx, everTrackedSQL, server.ProjectID, server.ServerID)
	if err != nil || isKnown {
		return false, err
	}
	instance, isNew, err := connect(ctx, tx, server)
	if err != nil || !isNew {
		return false, err
	}
	made.Lease.Reservations = []domain.Reservation{{
		ID: uuid.Must(uuid.NewV7()), ProjectID: server.ProjectID, LeaseID: made.Lease.ID,
		Type: domain.InstanceReservation, Status: domain.ReservationPending, InstanceID: instance.ID,
	}}
	_, err = createLease(ctx, tx, made)
	return true, err
}
