package leases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// changeAttempts bounds the retries of a change while others change the lease.
const changeAttempts = 3

// Change changes a lease. One whose instances are handled in the user's name for longer gets another trust, made with
// the caller's token.
func (s service) Change(
	ctx context.Context, who caller, id uuid.UUID, in ChangeLease, checkVersion func(int64) error,
) (changed domain.Lease, err error) {
	var delegated *domain.Connection // by an earlier attempt
	defer func() {
		if err != nil {
			s.trusts.Drop(ctx, delegated)
		}
	}()
	for attempt := range changeAttempts {
		before, now, err := s.version(ctx, who.ProjectID, id, checkVersion)
		if err != nil {
			return before, err
		}
		after, err := in.apply(before, s.rules, now)
		if err != nil || len(before.Changed(after)) == 0 {
			return before, err
		}
		after.Actor = domain.ActorFrom(ctx)
		if attempt == 0 {
			if err := s.count(ctx, who.Identity); err != nil {
				return before, err
			}
		}
		if delegated == nil && needsRights(before, after) {
			if delegated, err = s.delegate(ctx, who, untilNow(after, now)); err != nil {
				return before, err
			}
		}
		stored, err := s.store.Change(ctx, before, after, delegated, s.rules)
		if errors.Is(err, domain.ErrChanged) {
			continue
		}
		if err == nil {
			s.wake("run-leases", "run-connections", "deliver-events")
		}
		terms := domain.LeaseTerms{Start: in.Start.Value(), Duration: in.Duration.Value()}
		return stored, explain(err, terms, after.StartsAt)
	}
	return changed, apperr.New(apperr.Conflict, "others change the lease at the same time: repeat the request")
}

// version reads a lease whose version the caller expects, and the database's clock.
func (s service) version(
	ctx context.Context, projectID string, id uuid.UUID, check func(int64) error,
) (lease domain.Lease, now time.Time, err error) {
	lease, err = s.store.Get(ctx, projectID, id)
	if err == nil {
		err = check(lease.Version)
	}
	if err == nil {
		now, err = s.store.Now(ctx)
	}
	return lease, now, err
}

// delegate makes a new trust for a lease; nil for one whose connection its request named, which must last and permit.
func (s service) delegate(ctx context.Context, who caller, lease domain.Lease) (*domain.Connection, error) {
	if lease.SharesConnection {
		return nil, s.checkConnection(ctx, who, lease)
	}
	return s.trusts.Delegate(ctx, who.Identity, who.cloud, delegation.ForLease(lease))
}

// apply is the lease with the change. now is the database's clock.
func (c ChangeLease) apply(
	before domain.Lease, rules domain.LeaseRules, now time.Time,
) (after domain.Lease, err error) {
	after = before
	if after.VolumeEnds, err = c.volumeEnds(before); err != nil {
		return after, err
	}
	if before.IsEnding() {
		if !reflect.DeepEqual(c, ChangeLease{OnEnd: c.OnEnd, Reservations: c.Reservations}) {
			return after, apperr.New(apperr.Conflict,
				"the lease is ending: only on_end, also of its reservations, can be changed")
		}
		after.OnEnd = cmp.Or(c.OnEnd, before.OnEnd)
		return after, after.CheckOnEnd()
	}
	switch before.Status {
	case domain.LeasePending, domain.LeaseStarting, domain.LeaseActive:
	case domain.LeaseError:
		return after, apperr.New(apperr.Conflict, "the lease is in error and cannot be changed: retry it, or delete it")
	default:
		return after, apperr.New(apperr.Conflict, "the lease is %s and cannot be changed: create another",
			before.Status)
	}
	if c.Name != nil {
		after.Name = *c.Name
	}
	if c.Enforce != nil {
		after.Enforce = *c.Enforce
	}
	if c.Heal != "" {
		if !before.Hosts() {
			return after, apperr.InvalidField("heal", "is for hosts: the lease reserves instances only")
		}
		after.Heal = c.Heal
	}
	terms := domain.LeaseTerms{Start: before.StartsAt, End: before.EndsAt, Duration: c.Duration.Value(), OnEnd: c.OnEnd}
	if c.Start != "" {
		if terms.Start = c.Start.Value(); terms.Start.IsZero() {
			terms.Start = now
		}
	}
	if c.End != "" {
		if terms.End = c.End.Value(); terms.End.IsZero() {
			terms.End = now
		} else if !terms.End.After(now) {
			return after, apperr.InvalidField("end", `is in the past: give "now" to end the lease now`)
		}
	}
	if terms.OnEnd == "" {
		terms.OnEnd = before.OnEnd
	}
	if err := terms.Apply(&after, rules, now); err != nil {
		return after, err
	}
	if before.Status != domain.LeasePending && !after.StartsAt.Equal(before.StartsAt) {
		refusal := apperr.InvalidField("start", fmt.Sprintf("cannot be changed, because the lease is %s: only name, "+
			"end, duration, before_end, on_end, enforce, heal and reservations can", before.Status))
		refusal.Code = apperr.Conflict
		return after, refusal
	}
	after.BeforeEnd = before.BeforeEnd
	switch {
	case !c.BeforeEnd.IsZero():
		after.WarnBefore(c.BeforeEnd.Apply("").Value())
	case after.BeforeEnd >= after.EndsAt.Sub(after.StartsAt): // it is too short to warn
		after.BeforeEnd = 0
	}
	return after, after.CheckOnEnd()
}

// volumeEnds are what is to happen to volumes of the lease, by their reservations.
func (c ChangeLease) volumeEnds(before domain.Lease) (map[uuid.UUID]domain.VolumeEnd, error) {
	all := map[uuid.UUID]domain.VolumeEnd{}
	for n, r := range c.Reservations {
		if err := before.CheckVolumeEnd(r.ID.UUID, fmt.Sprintf("reservations[%d].id", n)); err != nil {
			return nil, err
		}
		all[r.ID.UUID] = r.OnEnd
	}
	return all, nil
}

// needsRights reports whether the connection of a lease may end too early for the change, or permit too little.
// Instances that the service account handles need none.
func needsRights(before, after domain.Lease) bool {
	return before.ConnectionID != uuid.Nil &&
		(after.EndsAt.After(before.EndsAt) || len(after.Permissions()) > len(before.Permissions()))
}

// Retry has run-leases try again what has failed, with a trust made with the caller's token.
func (s service) Retry(ctx context.Context, who caller, id uuid.UUID) (domain.Lease, error) {
	lease, err := s.store.Get(ctx, who.ProjectID, id)
	if err != nil {
		return lease, err
	}
	if err := lease.CheckRetry(); err != nil {
		return lease, err
	}
	if err := s.count(ctx, who.Identity); err != nil {
		return lease, err
	}
	now, err := s.store.Now(ctx)
	if err != nil {
		return lease, err
	}
	var delegated *domain.Connection
	if lease.ConnectionID != uuid.Nil {
		if delegated, err = s.delegate(ctx, who, untilNow(lease, now)); err != nil {
			return lease, err
		}
	}
	retried, err := s.store.Retry(ctx, who.ProjectID, id, delegated, domain.ActorFrom(ctx))
	if err != nil {
		s.trusts.Drop(ctx, delegated)
		return lease, err
	}
	s.wake("run-leases", "run-connections", "deliver-events")
	return retried, nil
}

// untilNow is a lease for a trust that is made when its end is done late.
func untilNow(lease domain.Lease, now time.Time) domain.Lease {
	if lease.EndsAt.Before(now) {
		lease.EndsAt = now
	}
	return lease
}

// Release ends a lease of any project for a caller to whom Nova shows its compute services. Its servers stay where they
// are.
func (s service) Release(ctx context.Context, who caller, id uuid.UUID) (domain.Lease, error) {
	if _, err := who.cloud.ComputeHosts(ctx); err != nil {
		return domain.Lease{}, err
	}
	project, err := s.store.ProjectOf(ctx, id)
	if err != nil {
		return domain.Lease{}, err
	}
	released, err := s.store.Abandon(ctx, project, id, domain.ActorFrom(ctx))
	if err == nil {
		s.wake("run-leases", "run-connections", "deliver-events")
	}
	return released, err
}

// count counts a change, or a search for free hosts, for the limit of the project.
func (s service) count(ctx context.Context, who domain.Identity) error {
	return s.changes.Take(ctx, who.ProjectID, "this project")
}
