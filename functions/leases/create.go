package leases

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Create stores a lease with its hosts, and delegates what its instances need; or it only reports whether it could.
func (s service) Create(
	ctx context.Context, who domain.Identity, token domain.Secret, in CreateLease, dryRun bool,
) (domain.Lease, error) {
	ctx = domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
	cloud := s.cloud.As(token, who.ProjectID)
	made, err := s.draft(ctx, who, cloud, in)
	if err != nil {
		return made.Lease, err
	}
	isDelegated := made.Lease.Instances()
	if isDelegated {
		if err := s.trusts.MayLease(who); err != nil {
			return made.Lease, err
		}
	}
	if isDelegated || dryRun { // a lease that Postgres refuses needs no trust
		checked, err := s.store.Check(ctx, made)
		if err != nil || dryRun {
			return checked, explain(err, in.Duration != "")
		}
	}
	if isDelegated {
		if made.Connection, err = s.trusts.ForLease(ctx, who, cloud, made.Lease); err != nil {
			return made.Lease, err
		}
	}
	stored, err := s.store.Create(ctx, made)
	if err != nil {
		if stored, err = s.afterFailure(ctx, cloud, made, err); err != nil {
			return stored, explain(err, in.Duration != "")
		}
	}
	s.wake("run-leases", "deliver-events")
	return stored, nil
}

// draft is the lease that a request asks for.
func (s service) draft(
	ctx context.Context, who domain.Identity, cloud session, in CreateLease,
) (made domain.NewLease, err error) {
	made.Rules = s.rules
	lease := &made.Lease
	lease.ProjectID, lease.DomainID, lease.UserID, lease.Name = who.ProjectID, who.DomainID, who.UserID, in.Name
	lease.Status, lease.Actor = domain.LeasePending, domain.ActorFrom(ctx)
	if lease.ID, err = uuid.NewV7(); err != nil {
		return made, err
	}
	now, err := s.store.Now(ctx)
	if err != nil {
		return made, err
	}
	if err := in.Terms().Apply(lease, now); err != nil {
		return made, err
	}
	var pool hostPool
	for n, r := range in.Reservations {
		if r.Type == domain.HostReservation && pool.all == nil {
			if pool, err = s.hostPool(ctx, cloud); err != nil {
				return made, err
			}
		}
		reservation, err := pool.reservation(ctx, n, r)
		if err != nil {
			return made, err
		}
		lease.Reservations = append(lease.Reservations, reservation)
	}
	return made, lease.CheckOnEnd()
}

// afterFailure handles the error of storing a lease. Postgres may have stored it although its answer was lost. If it
// has not, the trust is revoked.
func (s service) afterFailure(
	ctx context.Context, cloud session, made domain.NewLease, cause error,
) (domain.Lease, error) {
	if apperr.Retryable(cause) {
		ctx, cancel := domain.Detached(ctx)
		defer cancel()
		stored, err := s.store.Get(ctx, made.Lease.ProjectID, made.Lease.ID)
		if err == nil {
			return stored, nil
		}
		if apperr.CodeOf(err) != apperr.NotFound {
			return made.Lease, cause // run-connections revokes the trust if no connection has it
		}
	}
	if made.Connection != nil {
		s.trusts.Abandon(ctx, cloud, *made.Connection)
	}
	return made.Lease, cause
}

// explain adds to a refusal by Postgres what would be right. hasDuration says that the request has duration instead of
// end.
func explain(err error, hasDuration bool) error {
	if err == nil {
		return nil
	}
	refusal := *apperr.As(err)
	refusal.Fields = slices.Clone(refusal.Fields)
	var free *domain.FreeError
	if errors.As(err, &free) && !free.FreeAt.IsZero() {
		at := free.FreeAt.UTC().Format(time.RFC3339Nano)
		refusal.Fields = append(refusal.Fields, apperr.Field{
			Field: "start", Detail: "is too early: the hosts are free from " + at, Allowed: []string{at},
		})
	}
	for n, f := range refusal.Fields {
		if f.Field == "end" && hasDuration {
			refusal.Fields[n].Field = "duration"
			refusal.Message = "duration: " + f.Detail
		}
	}
	return &refusal
}
