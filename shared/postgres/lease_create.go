package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// One new lease at a time in a project, so that two cannot both be the last that is allowed.
	lockLeasesSQL = `select pg_advisory_xact_lock(hashtextextended('leases/' || $1, 0))`
	openLeasesSQL = `select count(*)::int from leases where project_id = $1 and status not in ('ended', 'cancelled')`

	insertLeaseSQL = `
insert into leases (project_id, id, domain_id, user_id, name, starts_at, ends_at, before_end, on_end,
                    connection_id, order_id, actor, due_at, status, start_result, started_at, shares_connection,
                    body_sha256, enforce)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, clock_timestamp(),
        case when $13 then 'active' else 'pending' end, case when $13 then 'done' else '' end,
        case when $13 then clock_timestamp() end, $14, $15, $16)
on conflict do nothing`

	firstLeaseEventSQL = `
with after as (select *, null::text as previous_status from leases where project_id = $1 and id = $2)` + leaseEventSQL +
		` after`
)

// errDryRun rolls back what Check has stored.
var errDryRun = errors.New("a dry run")

// Create stores a pending lease, or one that is active at once, with its connection, its reservations, their hosts and
// its event in one transaction. It is a Conflict when the project has as many open leases as the rules allow, and a
// domain.FreeError when an instance is in another lease then, or hosts are not free. A lease with a BodySHA256 is
// stored once: the same request gets the stored one, Repeated, and another request with its id is a Conflict.
func (s Leases) Create(ctx context.Context, made domain.NewLease) (stored domain.Lease, err error) {
	err = s.DB.changeTx(ctx, func(tx pgx.Tx) (err error) {
		stored, err = createLease(ctx, tx, made)
		return err
	})
	return stored, err
}

// Check returns the lease as Create would store it, or its error, and stores nothing: a dry run.
func (s Leases) Check(ctx context.Context, made domain.NewLease) (checked domain.Lease, err error) {
	err = s.DB.changeTx(ctx, func(tx pgx.Tx) (err error) {
		if checked, err = insertLease(ctx, tx, made); err != nil || checked.Repeated {
			return err
		}
		if checked, err = planHosts(ctx, tx, checked, made.Rules); err == nil {
			err = errDryRun
		}
		return err
	})
	if errors.Is(err, errDryRun) {
		err = nil
	}
	return checked, err
}

// createLease is Create in a transaction of the caller.
func createLease(ctx context.Context, tx pgx.Tx, made domain.NewLease) (domain.Lease, error) {
	stored, err := insertLease(ctx, tx, made)
	if err != nil || stored.Repeated {
		return stored, err
	}
	if err := bookHosts(ctx, tx, stored, made.Rules); err != nil {
		return stored, err
	}
	if _, err := tx.Exec(ctx, firstLeaseEventSQL, stored.ProjectID, stored.ID); err != nil {
		return stored, takenID(err, "id")
	}
	return withParts(ctx, tx, stored)
}

// insertLease stores a lease and its reservations, without hosts and without an event.
func insertLease(ctx context.Context, tx pgx.Tx, made domain.NewLease) (domain.Lease, error) {
	lease := made.Lease
	if _, err := tx.Exec(ctx, lockLeasesSQL, lease.ProjectID); err != nil {
		return lease, err
	}
	if stored, err := findRepeated(ctx, tx, made); err != nil || stored.Repeated {
		return stored, err
	}
	if err := checkLease(ctx, tx, made); err != nil {
		return lease, err
	}
	lease.Reservations = slices.Clone(lease.Reservations) // a repeated transaction begins with those of the caller
	if made.Connection != nil {
		delegated := *made.Connection
		delegated.LeaseID, lease.ConnectionID = lease.ID, delegated.ID
		if _, err := insertConnection(ctx, tx, delegated); err != nil {
			return lease, err
		}
	}
	stored, err := exec(ctx, tx, insertLeaseSQL, lease.ProjectID, lease.ID, lease.DomainID, lease.UserID, lease.Name,
		lease.StartsAt, lease.EndsAt, lease.BeforeEnd, lease.OnEnd, orNullID(lease.ConnectionID),
		orNullID(lease.OrderID), lease.Actor, lease.Status == domain.LeaseActive, lease.SharesConnection,
		made.BodySHA256, lease.Enforce)
	if err == nil && stored == 0 {
		err = errTaken("id", nil)
	}
	if err != nil {
		return lease, err
	}
	for n := range lease.Reservations {
		if err := insertReservation(ctx, tx, lease, n); err != nil {
			return lease, err
		}
	}
	inserted, err := lockLease(ctx, tx, lease.ProjectID, lease.ID)
	inserted.Length = lease.Length
	return inserted, err
}

// FindRepeated is the lease that the same request has stored before, Repeated, or else the zero one. It is a Conflict
// when another request has stored one with its id.
func (s Leases) FindRepeated(ctx context.Context, made domain.NewLease) (domain.Lease, error) {
	return findRepeated(ctx, s.DB.pool, made)
}

func findRepeated(ctx context.Context, db querier, made domain.NewLease) (stored domain.Lease, err error) {
	if made.BodySHA256 == nil {
		return stored, nil
	}
	type row struct {
		domain.Lease

		IsSame bool
	}
	found, isFound, err := queryFound[row](ctx, db, "select "+leaseColumns+`,
body_sha256 is not distinct from $3 as is_same from leases where project_id = $1 and id = $2`,
		made.Lease.ProjectID, made.Lease.ID, made.BodySHA256)
	if err != nil || !isFound {
		return stored, err
	}
	if !found.IsSame {
		return stored, apperr.New(apperr.Conflict, "id %s belongs to another lease: the same id needs the same request",
			made.Lease.ID)
	}
	found.Repeated = true
	return withParts(ctx, db, found.Lease)
}

// checkLease rejects a lease that the rules do not allow, an id that is taken, and a connection that ends before it.
func checkLease(ctx context.Context, tx pgx.Tx, made domain.NewLease) error {
	lease := made.Lease
	if made.BodySHA256 != nil {
		if taken, err := isTaken(ctx, tx, lease.ProjectID, lease.ID); err != nil {
			return err
		} else if taken {
			return errTaken("id", nil)
		}
	}
	if lease.SharesConnection {
		if err := checkShared(ctx, tx, lease, true); err != nil {
			return err
		}
	}
	if err := checkPeriod(lease, made.Rules); err != nil || made.Rules.PerProject == 0 {
		return err
	}
	open, err := queryValue[int](ctx, tx, openLeasesSQL, lease.ProjectID)
	if err == nil && open >= made.Rules.PerProject {
		err = apperr.New(apperr.Conflict, "the project has %d leases that have not ended, which is the limit", open)
	}
	return err
}

// checkPeriod rejects an end that is before the start, and a lease that is too long.
func checkPeriod(lease domain.Lease, rules domain.LeaseRules) error {
	length := lease.EndsAt.Sub(lease.StartsAt)
	switch {
	case length <= 0:
		return apperr.InvalidField("end", "must be after the start, "+lease.StartsAt.Format(time.RFC3339))
	case rules.Longest > 0 && length > rules.Longest:
		latest := lease.StartsAt.Add(rules.Longest).Format(time.RFC3339)
		return apperr.InvalidField("end", fmt.Sprintf("is %s after the start: a lease may take %s, until %s",
			domain.RoughPeriod(length, true), domain.PeriodOf(rules.Longest), latest))
	case lease.BeforeEnd < 0 || lease.BeforeEnd >= length:
		return apperr.InvalidField("before_end", fmt.Sprintf("must be shorter than the lease, which takes %s",
			domain.RoughPeriod(length, false)))
	}
	return nil
}

// instancesOf are the instances of a lease's reservations.
func instancesOf(lease domain.Lease) (ids []uuid.UUID) {
	for _, r := range lease.Reservations {
		if r.InstanceID != uuid.Nil {
			ids = append(ids, r.InstanceID)
		}
	}
	return ids
}
