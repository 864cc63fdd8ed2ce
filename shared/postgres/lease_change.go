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
	// A warning comes once more when the new end is still far enough away.
	changeLeaseSQL = `
with after as (
    update leases
    set name = $3, starts_at = $4, ends_at = $5, before_end = $6, on_end = $7, actor = $8, connection_id = $9,
        enforce = $11,
            warned_at = case when (ends_at, before_end) = ($5, $6)
                           or $5::timestamptz - $6::interval <= clock_timestamp() then warned_at end,
        due_at = clock_timestamp(), version = version + 1, seq = seq + 1, updated_at = clock_timestamp()
    where project_id = $1 and id = $2
    returning *
), event as (
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, id::text, seq, '` + domain.LeaseChangeEvent + `', updated_at,
           jsonb_strip_nulls(jsonb_build_object(
               'lease_id', id, 'name', name, 'fields', $10::text[], 'start', ` + startText + `, 'end', ` + endText + `,
               'on_end', on_end, 'instance_ids', ` + leasedInstances + `, 'volume_ids', ` + leasedVolumes + `,
               'actor', actor))
    from after
)
select ` + leaseColumns + ` from after`

	healHostsSQL = `
update reservations set want = jsonb_set(want, '{heal}', to_jsonb($3::text))
where project_id = $1 and lease_id = $2 and want is not null`

	endVolumeSQL = `
update reservations set volume = jsonb_set(volume, '{on_end}', to_jsonb($4::text))
where project_id = $1 and lease_id = $2 and id = $3`

	// What run-connections does for the lease goes on with the new connection. What it has done for a volume shows
	// whether that may hold data.
	replaceConnectionSQL = `
update actions set connection_id = $3
where project_id = $1 and connection_id = $2 and (status = 'running' or arguments ? 'volume')`
)

// Change replaces what the user chooses of a lease: its name, its period, the warning, what happens at its end, also to
// its volumes, and when its hosts fail; after.Actor is who requests it. It is domain.ErrChanged unless the version is
// still that of before, and a Conflict when the status does not allow the change. While a lease starts or runs, its
// start stays. A pending lease may get other hosts; any other keeps its hosts. While it is ending, only what happens at
// the end can change, and for a volume only until the end handles it. When hosts are not free it is a domain.FreeError.
// A new connection replaces the old one, which ends; a later end than that of the connection needs one. The event names
// the fields that changed.
func (s Leases) Change(
	ctx context.Context, before, after domain.Lease, connection *domain.Connection, rules domain.LeaseRules,
) (changed domain.Lease, err error) {
	return changeValue(ctx, s.DB, func(tx pgx.Tx) (domain.Lease, error) {
		return changeLease(ctx, tx, before, after, connection, rules)
	})
}

func changeLease(
	ctx context.Context, tx pgx.Tx, before, after domain.Lease, connection *domain.Connection, rules domain.LeaseRules,
) (changed domain.Lease, err error) {
	stored, err := lockLease(ctx, tx, before.ProjectID, before.ID)
	if err != nil {
		return stored, err
	}
	if stored.Version != before.Version {
		return stored, domain.ErrChanged
	}
	after = chosen(stored, after)
	if err := checkChange(stored, after, rules); err != nil {
		return stored, err
	}
	if after.ConnectionID, err = replaceConnection(ctx, tx, stored, after, connection); err != nil {
		return stored, err
	}
	if !stored.StartsAt.Equal(after.StartsAt) || !stored.EndsAt.Equal(after.EndsAt) {
		if err := moveReservations(ctx, tx, after); err != nil {
			return stored, err
		}
		if err := moveHosts(ctx, tx, after, rules); err != nil {
			return stored, err
		}
	}
	if after.Heal != "" {
		if _, err := exec(ctx, tx, healHostsSQL, after.ProjectID, after.ID, after.Heal); err != nil {
			return stored, err
		}
	}
	for id, end := range after.VolumeEnds {
		if _, err := exec(ctx, tx, endVolumeSQL, after.ProjectID, after.ID, id, end); err != nil {
			return stored, err
		}
	}
	return oneLease(ctx, tx, changeLeaseSQL, after.ProjectID, after.ID, after.Name, after.StartsAt, after.EndsAt,
		after.BeforeEnd, after.OnEnd, after.Actor, orNullID(after.ConnectionID), stored.Changed(after), after.Enforce)
}

// chosen is the stored lease with what the user chooses of another.
func chosen(stored, by domain.Lease) domain.Lease {
	stored.Name, stored.StartsAt, stored.EndsAt, stored.Length = by.Name, by.StartsAt, by.EndsAt, by.Length
	stored.BeforeEnd, stored.OnEnd, stored.Enforce, stored.Actor = by.BeforeEnd, by.OnEnd, by.Enforce, by.Actor
	stored.Heal, stored.VolumeEnds = by.Heal, by.VolumeEnds
	return stored
}

// checkChange rejects what the status or the rules do not allow.
func checkChange(stored, after domain.Lease, rules domain.LeaseRules) error {
	isMoved := !stored.StartsAt.Equal(after.StartsAt)
	for id := range after.VolumeEnds {
		if err := stored.CheckVolumeEnd(id, "reservations"); err != nil {
			return err
		}
	}
	isOfPlan := func(field string) bool { return field != "on_end" && field != "reservations" }
	fields := stored.Changed(after)
	if stored.IsEnding() && len(fields) > 0 && !slices.ContainsFunc(fields, isOfPlan) {
		return after.CheckOnEnd()
	}
	switch stored.Status {
	case domain.LeasePending:
	case domain.LeaseStarting, domain.LeaseActive:
		if isMoved {
			refusal := apperr.InvalidField("start", fmt.Sprintf("cannot change: the lease is %s", stored.Status))
			refusal.Code = apperr.Conflict
			return refusal
		}
	default:
		return apperr.New(apperr.Conflict, "a lease that is %s cannot be changed", stored.Status)
	}
	return checkPeriod(after, rules)
}

// replaceConnection stores a new connection of a lease and ends the old one, and returns the id of the one it has then.
func replaceConnection(
	ctx context.Context, tx pgx.Tx, stored, after domain.Lease, connection *domain.Connection,
) (uuid.UUID, error) {
	if connection == nil {
		after.ConnectionID = stored.ConnectionID
		needsMore := after.EndsAt.After(stored.EndsAt) || len(after.Permissions()) > len(stored.Permissions())
		if stored.ConnectionID == uuid.Nil || !needsMore {
			return stored.ConnectionID, nil
		}
		return stored.ConnectionID, checkShared(ctx, tx, after, stored.SharesConnection)
	}
	delegated := *connection
	delegated.LeaseID = stored.ID
	if _, err := insertConnection(ctx, tx, delegated); err != nil || stored.ConnectionID == uuid.Nil {
		return delegated.ID, err
	}
	_, err := exec(ctx, tx, replaceConnectionSQL, stored.ProjectID, stored.ConnectionID, delegated.ID)
	if err != nil {
		return delegated.ID, err
	}
	return delegated.ID, endConnection(ctx, tx, stored.ProjectID, stored.ConnectionID,
		"its lease has got another delegation")
}

// endsBefore is the refusal of a lease whose connection ends before it.
func endsBefore(isShared bool) error {
	if isShared {
		refusal := apperr.InvalidField("connection_id", "ends before the lease: prolong the connection first")
		refusal.Code = apperr.Conflict
		return refusal
	}
	return apperr.New(apperr.Conflict, "a later end needs a new delegation by a user of the project")
}

// errOverlap rolls back what would overlap with another reservation.
var errOverlap = errors.New("what is reserved is another reservation's then")

const (
	// A host that was replaced moves with the others unless another reservation has it then: its servers may be on it.
	moveAllocationsSQL = `
update allocations a set during = tstzrange(case when $3::boolean then $4 else lower(a.during) end, $5)
from reservations r
where r.project_id = $1 and r.lease_id = $2 and a.project_id = r.project_id and a.reservation_id = r.id
  and a.released_at is null and upper(a.during) > clock_timestamp()
  and (a.replaced_at is null or not exists (
    select from allocations b
    where b.node = a.node and (b.project_id, b.reservation_id) <> (a.project_id, a.reservation_id)
      and b.during && tstzrange(lower(a.during), $5)))`

	// The first time at which another reservation has one of the hosts.
	nextTakenSQL = `
select min(lower(b.during)) from reservations r
join allocations a on a.project_id = r.project_id and a.reservation_id = r.id
join allocations b on b.node = a.node and lower(b.during) >= upper(a.during)
where r.project_id = $1 and r.lease_id = $2 and a.released_at is null and a.replaced_at is null`
)

// moveHosts moves the hosts of a lease to its new period.
func moveHosts(ctx context.Context, tx pgx.Tx, lease domain.Lease, rules domain.LeaseRules) error {
	isPending := lease.Status == domain.LeasePending
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := exec(ctx, tx, moveAllocationsSQL, lease.ProjectID, lease.ID, isPending, lease.StartsAt,
			lease.EndsAt.Add(rules.Cleaning))
		if sqlState(err) == stateExclusion {
			err = errOverlap
		}
		return err
	})
	if !errors.Is(err, errOverlap) {
		return err
	}
	if !isPending {
		return taken(ctx, tx, lease, rules)
	}
	if _, err := exec(ctx, tx, cancelAllocationsSQL, lease.ProjectID, lease.ID); err != nil {
		return err
	}
	return bookHosts(ctx, tx, lease, rules)
}

// taken says until when an active lease can be extended.
func taken(ctx context.Context, tx pgx.Tx, lease domain.Lease, rules domain.LeaseRules) error {
	at, err := queryValue[*time.Time](ctx, tx, nextTakenSQL, lease.ProjectID, lease.ID)
	if err != nil {
		return err
	}
	detail := "a host of the lease is another reservation's then"
	latest, allowed := lease.EndsAt, []string(nil)
	if at != nil {
		latest = at.Add(-rules.Cleaning)
		detail = fmt.Sprintf("a host of the lease is another reservation's from %s: it can end at %s at the latest",
			at.UTC().Format(time.RFC3339), latest.UTC().Format(time.RFC3339))
		allowed = []string{latest.UTC().Format(time.RFC3339Nano)}
	}
	refusal := apperr.InvalidField("end", detail, allowed...)
	refusal.Code = apperr.Conflict
	return &domain.FreeError{Refusal: refusal, EndsBy: latest}
}

const (
	// A failed start or end has not happened yet.
	retryLeaseSQL = setStatus + `, problem = null, due_at = clock_timestamp(), attempts = 0, connection_id = $5,
        started_at = case when l.start_result <> 'failed' or $3 = 'ending' then l.started_at end,
        start_result = case when l.start_result = 'failed' and $3 <> 'ending' then '' else l.start_result end,
        ended_at = null, end_result = '',
        ending_since = case when $3 = 'ending' then ` + endingSinceNow + ` end` + afterStatus
)

// Retry has run-leases try again what has failed of a lease in error: its start, or its end when that is due. One that
// is ending is tried now, and as long as at first. A connection given replaces the old one, and must outlast the lease.
// A lease in another status is a Conflict.
func (s Leases) Retry(
	ctx context.Context, projectID string, id uuid.UUID, connection *domain.Connection, actor *domain.Actor,
) (retried domain.Lease, err error) {
	return changeValue(ctx, s.DB, func(tx pgx.Tx) (domain.Lease, error) {
		return retry(ctx, tx, projectID, id, connection, actor)
	})
}

func retry(
	ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID, connection *domain.Connection, actor *domain.Actor,
) (domain.Lease, error) {
	stored, err := lockLease(ctx, tx, projectID, id)
	if err != nil {
		return stored, err
	}
	if err := stored.CheckRetry(); err != nil {
		return stored, err
	}
	now, err := queryValue[time.Time](ctx, tx, "select clock_timestamp()")
	if err != nil {
		return stored, err
	}
	used, err := replaceConnection(ctx, tx, stored, stored, connection)
	if err != nil {
		return stored, err
	}
	return oneLease(ctx, tx, retryLeaseSQL, projectID, id, retryStatus(stored, now), actor, orNullID(used))
}

// retryStatus is the status of a lease that is retried.
func retryStatus(l domain.Lease, now time.Time) domain.LeaseStatus {
	switch {
	case !l.EndsAt.After(now) || l.IsEnding():
		return domain.LeaseEnding
	case l.StartResult == domain.StepDone:
		return domain.LeaseActive
	case l.StartsAt.After(now):
		return domain.LeasePending
	}
	return domain.LeaseStarting
}

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

// End deletes a lease at the actor's request. A pending lease without anything prepared ends immediately: its hosts are
// free, and its connection ends. Any other that has not ended is ending; run-leases does the rest. Hosts that it had
// not begun to prepare are free immediately. An onEnd replaces the lease's own, also of one that is ending; instances
// of a pending lease are left as they were before it. A lease that has ended stays as it is.
func (s Leases) End(
	ctx context.Context, projectID string, id uuid.UUID, onEnd domain.OnEnd, actor *domain.Actor,
) (ended domain.Lease, err error) {
	return s.end(ctx, projectID, id, onEnd, actor, checkOnEnd)
}

// Abandon ends a lease as End does, and leaves all of its servers where they are, at its operator's request. Hosts with
// servers are not reservable until those are removed.
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
) (domain.Lease, error) {
	return changeValue(ctx, s.DB, func(tx pgx.Tx) (domain.Lease, error) {
		stored, err := lockLease(ctx, tx, projectID, id)
		lease := stored
		if onEnd != "" {
			lease.OnEnd = onEnd
		}
		isSame := lease.Status == domain.LeaseEnding && lease.OnEnd == stored.OnEnd
		if err != nil || !lease.Status.IsOpen() || isSame {
			return stored, err
		}
		if err := check(stored, lease); err != nil {
			return stored, err
		}
		isClaimed, err := queryValue[bool](ctx, tx, isClaimedSQL, projectID, id)
		if err != nil {
			return stored, err
		}
		if lease.Status == domain.LeasePending && !isClaimed && !isPrepared(lease) {
			return cancel(ctx, tx, lease, actor)
		}
		if lease.StartResult == "" && !slices.Contains(startedOrEnding, lease.Status) && !lease.Hosts() {
			lease.OnEnd = domain.OnEndNone
		}
		return beginEnd(ctx, tx, lease, actor)
	})
}

// beginEnd has a lease ending, and frees the hosts that it has not begun to prepare.
func beginEnd(ctx context.Context, tx pgx.Tx, lease domain.Lease, actor *domain.Actor) (domain.Lease, error) {
	if _, err := exec(ctx, tx, freeAllocationsSQL, lease.ProjectID, lease.ID); err != nil {
		return lease, err
	}
	return oneLease(ctx, tx, endLeaseSQL, lease.ProjectID, lease.ID, domain.LeaseEnding, actor, lease.OnEnd)
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
	return oneLease(ctx, tx, cancelLeaseSQL, lease.ProjectID, lease.ID, domain.LeaseCancelled, actor)
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
