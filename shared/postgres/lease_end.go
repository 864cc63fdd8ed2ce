package postgres

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	setStatus = `
with before as (
    select id as old_id, status as old_status from leases where project_id = $1 and id = $2 for no key update
), after as (
    update leases l set version = l.version + 1, seq = l.seq + (b.old_status <> $3)::int, status = $3, actor = $4,
        updated_at = clock_timestamp()`

	afterStatus = `
    from before b where l.project_id = $1 and l.id = b.old_id
    returning l.*, b.old_status as previous_status
), event as (` + leaseEventSQL + ` after where previous_status <> status)
select ` + leaseColumns + ` from after`

	cancelLeaseSQL = setStatus + `, due_at = null, ended_at = clock_timestamp()` + afterStatus
	endLeaseSQL    = setStatus + `, due_at = clock_timestamp(), attempts = 0, problem = null, on_end = $5,
        ending_since = ` + endingSinceNow + afterStatus

	// What a lease was cancelled before stays: its start.
	endingSinceNow = `case when l.start_result = '' and l.ending_since < l.starts_at then l.ending_since
        else clock_timestamp() end`
)

// End deletes a lease as the actor asks. A pending lease without anything prepared ends immediately: its hosts are
// free, and its connection ends. Any other that has not ended is ending; run-leases does the rest. Hosts that it had
// not begun to prepare are free immediately. An onEnd replaces the lease's own, also of one that is ending; instances
// of a pending lease are left as they were before it. A lease that has ended stays as it is.
func (s Leases) End(
	ctx context.Context, projectID string, id uuid.UUID, onEnd domain.OnEnd, actor *domain.Actor,
) (ended domain.Lease, err error) {
	return s.end(ctx, projectID, id, onEnd, actor, checkOnEnd)
}

// Abandon ends a lease as End does, and leaves all of its servers where they are, as its operator asks. Hosts with
// servers are not reservable until those are gone.
func (s Leases) Abandon(
	ctx context.Context, projectID string, id uuid.UUID, actor *domain.Actor,
) (domain.Lease, error) {
	return s.end(ctx, projectID, id, domain.OnEndNone, actor, func(_, _ domain.Lease) error { return nil })
}

// ProjectOf returns the project of a lease, for the cloud's admins.
func (s Leases) ProjectOf(ctx context.Context, id uuid.UUID) (string, error) {
	project, err := queryValue[string](ctx, s.DB.pool, "select project_id from leases where id = $1", id)
	return project, orNotFound(err, "unknown lease %s", id)
}

// checkOnEnd rejects what cannot happen to the lease's servers, or what its connection does not permit.
func checkOnEnd(stored, after domain.Lease) error {
	if err := after.CheckOnEnd(); err != nil {
		return err
	}
	if after.ConnectionID == uuid.Nil || len(after.Permissions()) <= len(stored.Permissions()) {
		return nil
	}
	refusal := apperr.InvalidField("on_end", "what was delegated to the lease does not permit "+string(after.OnEnd)+
		": change its on_end first, by PATCH, which delegates more")
	refusal.Code = apperr.Conflict
	return refusal
}

func (s Leases) end(
	ctx context.Context, projectID string, id uuid.UUID, onEnd domain.OnEnd, actor *domain.Actor,
	check func(stored, after domain.Lease) error,
) (ended domain.Lease, err error) {
	err = s.DB.changeTx(ctx, func(tx pgx.Tx) (err error) {
		stored, err := lockLease(ctx, tx, projectID, id)
		lease := stored
		if onEnd != "" {
			lease.OnEnd = onEnd
		}
		isSame := lease.Status == domain.LeaseEnding && lease.OnEnd == stored.OnEnd
		if err != nil || !lease.Status.IsOpen() || isSame {
			ended = stored
			return err
		}
		if err := check(stored, lease); err != nil {
			return err
		}
		isClaimed, err := queryValue[bool](ctx, tx, isClaimedSQL, projectID, id)
		if err != nil {
			return err
		}
		if lease.Status == domain.LeasePending && !isClaimed && !isPrepared(lease) {
			ended, err = cancel(ctx, tx, lease, actor)
			return err
		}
		if lease.StartResult == "" && !slices.Contains(startedOrEnding, lease.Status) && !lease.Hosts() {
			lease.OnEnd = domain.OnEndNone
		}
		ended, err = beginEnd(ctx, tx, lease, actor)
		return err
	})
	return ended, err
}

// beginEnd has a lease ending, and frees the hosts that it has not begun to prepare.
func beginEnd(ctx context.Context, tx pgx.Tx, lease domain.Lease, actor *domain.Actor) (domain.Lease, error) {
	if _, err := exec(ctx, tx, freeAllocationsSQL, lease.ProjectID, lease.ID); err != nil {
		return lease, err
	}
	ended, err := queryOne[domain.Lease](ctx, tx, endLeaseSQL, lease.ProjectID, lease.ID, domain.LeaseEnding, actor,
		lease.OnEnd)
	if err != nil {
		return lease, err
	}
	return withParts(ctx, tx, ended)
}

// startedOrEnding are the statuses in which a lease that was not active yet may have started instances, or ends them.
var startedOrEnding = []domain.LeaseStatus{domain.LeaseStarting, domain.LeaseEnding}

const isClaimedSQL = `
select coalesce(claimed_until > clock_timestamp(), false) from leases where project_id = $1 and id = $2`

// isPrepared reports whether a pending lease has something in OpenStack, or an instance that it has shelved.
func isPrepared(lease domain.Lease) bool {
	for _, r := range lease.Reservations {
		if r.WasRunning || r.ActionID != uuid.Nil || r.AggregateID != 0 {
			return true
		}
		for _, a := range r.Allocations {
			if !a.PreparedAt.IsZero() {
				return true
			}
		}
	}
	return false
}

// cancel ends a lease that has nothing in OpenStack.
func cancel(ctx context.Context, tx pgx.Tx, lease domain.Lease, actor *domain.Actor) (domain.Lease, error) {
	if _, err := exec(ctx, tx, cancelAllocationsSQL, lease.ProjectID, lease.ID); err != nil {
		return lease, err
	}
	if err := closeParts(ctx, tx, lease); err != nil {
		return lease, err
	}
	ended, err := queryOne[domain.Lease](ctx, tx, cancelLeaseSQL, lease.ProjectID, lease.ID,
		domain.LeaseCancelled, actor)
	if err != nil {
		return lease, err
	}
	return withParts(ctx, tx, ended)
}

const (
	closeReservationsSQL = `
update reservations set is_open = false, status = 'ended', action_id = null
where project_id = $1 and lease_id = $2`
)

// closeParts ends the reservations of a lease and its connection, and frees its instances.
func closeParts(ctx context.Context, tx pgx.Tx, lease domain.Lease) error {
	if _, err := exec(ctx, tx, closeReservationsSQL, lease.ProjectID, lease.ID); err != nil {
		return err
	}
	instances := instancesOf(lease)
	if err := setLeases(ctx, tx, lease.ProjectID, instances...); err != nil {
		return err
	}
	if _, err := exec(ctx, tx, wakeNextSQL, lease.ProjectID, orEmpty(instances)); err != nil || lease.SharesConnection {
		return err
	}
	return endConnection(ctx, tx, lease.ProjectID, lease.ConnectionID, "its lease has ended")
}

// endConnection ends the connection of a lease; the zero id has nothing to end. run-connections revokes its trust.
func endConnection(ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID, reason string) error {
	if id == uuid.Nil {
		return nil
	}
	_, err := exec(ctx, tx, endConnectionSQL, projectID, id, domain.ConnectionDeleted, reason, false, 0, false,
		domain.ActorFrom(ctx))
	return err
}
