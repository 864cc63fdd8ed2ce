package launch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// reservedField is where a request names its host reservation.
const reservedField = "reservation_id"

// reserved reads the flavors of the order's host reservation, which alone lead to its hosts; nil without one. The error
// has the field and what is allowed.
func (s service) reserved(ctx context.Context, a access, req createOrder) ([]domain.LeasedFlavor, error) {
	if req.reservationID == uuid.Nil {
		return nil, nil
	}
	if a.Connection.Remote() {
		return nil, apperr.InvalidField(reservedField,
			"cannot be combined with a connection to another cloud or region: its hosts are here")
	}
	r, lease, err := s.leases.GetReservation(ctx, a.ProjectID, req.reservationID)
	if apperr.CodeOf(err) == apperr.NotFound {
		allowed, listErr := s.leases.ListLaunchable(ctx, a.ProjectID)
		if listErr != nil {
			return nil, listErr
		}
		return nil, apperr.Unknown(reservedField, "reservation", req.reservationID.String(), allowed...)
	}
	if err != nil {
		return nil, err
	}
	if r.Type != domain.HostReservation {
		return nil, apperr.InvalidField(reservedField, "is a reservation of an instance: must be one of hosts")
	}
	if err := checkLaunchable(r, lease); err != nil {
		return nil, err
	}
	return r.Flavors, nil
}

// checkLaunchable fails unless servers can be launched on the reservation's hosts now.
func checkLaunchable(r domain.Reservation, lease domain.Lease) error {
	isOver := lease.Status == domain.LeaseEnding || !lease.Status.IsOpen()
	if r.Status == domain.ReservationActive && !isOver {
		return nil
	}
	err := apperr.InvalidField(reservedField, fmt.Sprintf(
		"is %s and its lease %s: servers can be launched on its hosts while it is active, from %s to %s", r.Status,
		lease.Status, lease.StartsAt.UTC().Format(time.RFC3339), lease.EndsAt.UTC().Format(time.RFC3339)))
	err.Code = apperr.Conflict
	return err
}

// copyOf is a reservation's flavor as one of Nova's.
func copyOf(f domain.LeasedFlavor) domain.Flavor {
	return domain.Flavor{ID: f.ID, Name: f.Name, VCPUs: f.VCPUs, RAMMB: f.RAMMB, DiskGB: f.DiskGB}
}

// reserve narrows the catalog to a reservation's flavors; nil leaves it as it is. limits are those of the connection:
// a copy is allowed as its base is.
func (l *catalog) reserve(flavors []domain.LeasedFlavor, limits domain.ConnectionLimits) {
	if flavors == nil {
		return
	}
	l.reserved, l.flavors, l.allowed = flavors, nil, []domain.Flavor{}
	for _, f := range flavors {
		l.flavors = append(l.flavors, copyOf(f))
		if limits.CheckFlavor("flavor", f.BaseID, f.Base) == nil {
			l.allowed = append(l.allowed, copyOf(f))
		}
	}
}

// pickReserved finds the reservation's copy of a flavor, by the id or name of the copy or its base.
func (l catalog) pickReserved(r lookup.Ref) (domain.Flavor, error) {
	var names []string
	for _, f := range l.reserved {
		if slices.Contains([]string{f.ID, f.Name, f.BaseID, f.Base}, r.Value) {
			return copyOf(f), nil
		}
		names = append(names, f.Base)
	}
	return domain.Flavor{}, apperr.InvalidField(r.Field, fmt.Sprintf("the reservation has no flavor %q", r.Value),
		lookup.Some(names)...)
}

// sized sets the server's flavor, and the one that it is a copy of.
func (l catalog) sized(spec *domain.LaunchSpec, flavor domain.Flavor) {
	spec.Sized(flavor)
	n := slices.IndexFunc(l.reserved, func(f domain.LeasedFlavor) bool { return f.ID == flavor.ID })
	if n >= 0 {
		spec.BaseFlavorID, spec.BaseFlavorName = l.reserved[n].BaseID, l.reserved[n].Base
	}
}
