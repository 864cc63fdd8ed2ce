package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// checkLease reports what is wrong with the lease, and with what cannot be combined with it.
func (in launchRequest) checkLease(wrong *faults) {
	if in.Lease == nil {
		return
	}
	wrong.forbid(in.ConnectionID != "", in.Lease.path(),
		"cannot be combined with connection_id: a lease is handled with a delegation by the user whose servers "+
			"they are")
	wrong.forbid(in.Start != nil && !*in.Start, "start", "must be true with lease: a lease starts its servers", "true")
	for _, err := range in.Lease.Check() {
		*wrong = append(*wrong, ofLease(err, in.Lease))
	}
	if in.Lease.Name != "" {
		if err := (domain.Lease{Name: in.Lease.Name}).Validate(); err != nil {
			*wrong = append(*wrong, ofLease(err, in.Lease))
		}
	}
}

// ofLease gives the fields of an error their paths in the request; an error without a field is one of lease.
func ofLease(err error, of *OrderLeaseRequest) error {
	if err == nil {
		return nil
	}
	e := *apperr.As(err)
	e.Fields = slices.Clone(e.Fields)
	for n, f := range e.Fields {
		if f.Field == "end" && of.Duration != "" {
			f.Field = "duration"
		}
		e.Fields[n].Field = of.at(f.Field)
		e.Message = e.Fields[0].Field + ": " + e.Fields[0].Detail
	}
	if len(e.Fields) == 0 && e.Code == apperr.Conflict {
		e.Fields = []apperr.Field{{Field: of.path(), Detail: e.Message}}
	}
	return &e
}

// newLease makes the lease of a new order's instances; nil = it gets none. A default lease is the operator's: the
// project's limits do not count for it. That of servers that are launched stopped is active immediately, because a
// start would start them.
func (s service) newLease(
	ctx context.Context, a access, req createOrder, order domain.Order,
) (*domain.NewLease, error) {
	requested := req.lease
	isDefault := requested == nil && !s.defaultLease.IsZero() && a.Connection.ID == uuid.Nil
	if requested == nil && !isDefault {
		return nil, nil //nolint:nilnil // it gets none
	}
	rules, terms := s.rules, domain.LeaseTerms{Duration: s.defaultLease}
	if isDefault {
		rules, requested = domain.LeaseRules{}, &OrderLeaseRequest{}
	} else {
		terms = requested.Terms()
	}
	now, err := s.leases.Now(ctx)
	if err != nil {
		return nil, err
	}
	lease := domain.Lease{
		ProjectID: order.ProjectID, DomainID: order.DomainID, UserID: order.UserID,
		Name: cmp.Or(requested.Name, req.name), OrderID: order.ID, Actor: order.Actor,
	}
	if req.spec.Stopped {
		lease.Status = domain.LeaseActive
	}
	made, err := terms.NewLease(lease, rules, now)
	if err != nil {
		return nil, ofLease(err, requested)
	}
	if _, err := s.leases.Check(ctx, made); err != nil { // a lease that Postgres refuses needs no trust
		return nil, ofLease(err, requested)
	}
	for _, i := range order.Instances {
		made.Lease.Reservations = append(made.Lease.Reservations, domain.Reservation{
			ID: uuid.Must(uuid.NewV7()), ProjectID: order.ProjectID, LeaseID: made.Lease.ID,
			Type: domain.InstanceReservation, Status: domain.ReservationPending, InstanceID: i.ID,
		})
	}
	return &made, nil
}

// delegate makes the trust with which the lease's instances are handled. A default lease of a caller whose token can
// make none is handled with the service account.
func (s service) delegate(ctx context.Context, a access, req createOrder, made *domain.NewLease) (err error) {
	if made == nil {
		return nil
	}
	made.Connection, err = s.trusts.Delegate(ctx, a.Identity, a.cloud, delegation.ForLease(made.Lease))
	isImpossible := errors.Is(err, domain.ErrDelegatedToken) || apperr.CodeOf(err) == apperr.Unsupported
	if req.lease == nil && isImpossible {
		return nil
	}
	return err
}

// revoke revokes the trust of a lease that was not stored, because its order was refused or is stored already.
func (s service) revoke(ctx context.Context, a access, order domain.Order, cause error) {
	if order.Lease != nil {
		s.trusts.Discard(ctx, a.cloud, order.Lease.Connection, cause)
	}
}

// refusedLease gives an error about the lease from Submit its path in the request.
func refusedLease(err error, of *OrderLeaseRequest) error {
	fields := apperr.As(err).Fields
	if err == nil || of == nil || len(fields) == 0 || !slices.Contains(leaseFields(), fields[0].Field) {
		return err
	}
	return ofLease(err, of)
}

// leaseFields are the fields of a lease that Postgres may reject.
func leaseFields() []string { return []string{"start", "end", "before_end"} }

// checkLease reports what would make the lease of the order fail.
func (s service) checkLease(ctx context.Context, a access, req createOrder, out *launchReport) error {
	made, err := s.newLease(ctx, a, req, domain.Order{ID: req.id, ProjectID: a.ProjectID, DomainID: a.DomainID})
	if err != nil {
		return out.addErrors([]error{err})
	}
	if made == nil || req.lease == nil {
		return nil
	}
	if err := s.trusts.Check(a.Identity, delegation.ForLease(made.Lease)); err != nil {
		field := "lease"
		if apperr.CodeOf(err) == apperr.Forbidden {
			field = "X-Auth-Token"
		}
		out.add(field, apperr.CodeOf(err), "%s", apperr.As(err).Message)
	}
	return nil
}

// leasesOf reads the leases of orders by their ids, as far as they are stored.
func (s service) leasesOf(ctx context.Context, orders ...domain.Order) (map[uuid.UUID]domain.Lease, error) {
	byID := map[uuid.UUID]domain.Lease{}
	ids := map[string][]uuid.UUID{}
	for _, o := range orders {
		if o.Spec.LeaseID != nil {
			ids[o.ProjectID] = append(ids[o.ProjectID], *o.Spec.LeaseID)
		}
	}
	for project, ids := range ids {
		found, err := s.leases.ListByIDs(ctx, project, ids)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			byID[l.ID] = l
		}
	}
	return byID, nil
}

// leaseName is the name of a lease that was given none: the order's, or that of its first server.
func (in launchRequest) leaseName(items []item) string {
	if in.Name == "" && len(items) > 0 {
		return strings.TrimSpace(items[0].name)
	}
	return string(in.Name)
}

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
