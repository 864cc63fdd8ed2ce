package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

const (
	// isEnd reports whether a lease (q) ends.
	isEnd = `(q.status = 'ending' or q.ends_at <= clock_timestamp())`

	// isUpkeep reports whether the hosts of an active lease (q) are looked after.
	isUpkeep = `(q.status = 'active' and not ` + isEnd + ` and exists (select from reservations r
    where r.project_id = q.project_id and r.lease_id = q.id and r.type = 'host'))`
)

// Queue returns the leases that are due, with their reservations and hosts. Ends come first, then starts, then upkeep,
// each the longest due first. Upkeep has a share of its own, and so has each project. Leases of projects that are not
// served are left out, except ends, which give hosts back.
func (s Leases) Queue() Queue[domain.Lease] {
	key := func(l domain.Lease) []any { return []any{l.ProjectID, l.ID} }
	return Queue[domain.Lease]{db: s.DB, key: key, complete: addParts, spec: due.Queue{
		Table: "leases", Key: []string{"project_id", "id"}, Columns: leaseColumns,
		Where: "(" + isEnd + " or " + served("q") + ")",
		Order: "case when " + isEnd + " then 0 when q.status = 'active' then 2 else 1 end, q.due_at, q.id",
		Shares: "case when " + isUpkeep + " then array['upkeep', 'project ' || q.project_id] " +
			"else array['project ' || q.project_id] end",
		OnClaim: "due_at = now()",
	}}
}

const retireLeasesSQL = `
delete from leases where (project_id, id) in (
    select project_id, id from leases
    where status in ('ended', 'cancelled') and updated_at < now() - $1::interval limit $2)`

// Retire deletes leases of all projects that ended longer ago than age, with their reservations and allocations.
func (s Leases) Retire(ctx context.Context, age time.Duration) error {
	return inBatches(ctx, s.DB.pool, retireLeasesSQL, age)
}

const (
	// What follows a lease under its claim ($3) until the transaction ends.
	lockClaimedLeaseSQL = "select " + leaseColumns + `
from leases where project_id = $1 and id = $2 and claim_id = $3 for no key update`

	// The claim is kept for $14, or released when that is null. With $15 there is an event although the status is what
	// it was, and with $16 the warning's before it. What the lease waited for may have happened since it was claimed:
	// then it is due immediately (wake_leases).
	saveLeaseSQL = `
with before as (
    select id as old_id, status as old_status, degraded as old_degraded
    from leases where project_id = $1 and id = $2 and claim_id = $3
), after as (
    update leases l
    set status = $4, problem = $5, degraded = $6, start_result = $7, end_result = $9,
        started_at = case when $7 = 'failed' and l.start_result = '' then clock_timestamp() else $8 end,
        ended_at = case when $9 = 'failed' and l.end_result = '' then clock_timestamp() else $10 end,
        due_at = case when $4 in ('ended', 'cancelled') then null when l.due_at = 'epoch' then l.due_at else $11 end,
        attempts = $12, version = l.version + $13::boolean::int,
        warned_at = case when $16 then clock_timestamp() else l.warned_at end,
        seq = l.seq + $16::boolean::int + ((l.status, l.degraded) <> ($4, $6::boolean) or $15)::int,
        updated_at = case when $13 then clock_timestamp() else l.updated_at end,
        ending_since = case when $4 = 'ending' and l.status <> 'ending' then clock_timestamp() else l.ending_since end,
        claim_id = case when $14::interval is not null then l.claim_id end,
        claimed_until = clock_timestamp() + $14::interval
    from before b where l.project_id = $1 and l.id = b.old_id
    returning l.*, b.old_status as previous_status,
              (b.old_status, b.old_degraded) <> (l.status, l.degraded) or $15::boolean as notify
), warning as (
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, id::text, seq - notify::int, '` + domain.LeaseWarningEvent + `', updated_at,
           jsonb_strip_nulls(jsonb_build_object(
               'lease_id', id, 'name', name, 'end', ` + endText + `, 'on_end', on_end,
               'instance_ids', ` + leasedInstances + `, 'volume_ids', ` + leasedVolumes + `))
    from after where $16
), event as (` + leaseEventSQL + ` after where notify)
select ` + leaseColumns + ` from after`

	dueNowSQL = `
update leases set due_at = clock_timestamp(), ` + due.ReleaseSQL + `
where project_id = $1 and id = $2 and claim_id = $3`

	// What happens to a volume at the end is its user's choice, which may have changed since the claim.
	saveReservationSQL = `
update reservations set status = $3, problem = $4, action_id = $5, aggregate_id = nullif($6::bigint, 0), flavors = $7,
    was_running = $8, prepared_at = $9, servers = $10, actions_done = $11,
    volume = $12::jsonb || jsonb_build_object('on_end', volume->'on_end')
where project_id = $1 and id = $2 and is_open`
)

// Save writes what run-leases changes of a claimed lease and releases the claim: its status, problem, degraded,
// results, times, attempts and due time, and of its reservations the status, problem, action, aggregate and flavors.
// An event reports a new status or degraded, and another one the first WarnedAt, which becomes the database's time.
// The lease given gets its new Version, Seq and UpdatedAt. It is domain.ErrFenced when another replica has claimed the
// lease since. It is domain.ErrChanged when the user has changed it since it was claimed: then only its reservations
// are written, the claim is released, and the lease is due immediately.
func (s Leases) Save(ctx context.Context, claim domain.Claim, lease *domain.Lease) error {
	return s.save(ctx, claim, lease, 0)
}

// SaveStep does what Save does, and renews the claim. With domain.ErrChanged it releases it.
func (s Leases) SaveStep(
	ctx context.Context, claim domain.Claim, lease *domain.Lease, claimFor time.Duration,
) error {
	return s.save(ctx, claim, lease, claimFor)
}

func (s Leases) save(ctx context.Context, claim domain.Claim, lease *domain.Lease, claimFor time.Duration) error {
	return s.claimed(ctx, claim, lease, func(tx pgx.Tx, stored domain.Lease) (domain.Lease, error) {
		isShown, err := saveReservations(ctx, tx, stored, *lease)
		if err != nil || stored.Version != lease.Version {
			return stored, err
		}
		return saveLease(ctx, tx, claim, stored, *lease, isShown, claimFor)
	})
}

// claimed runs a change of a claimed lease in a transaction. The change gets the lease as it is stored; one whose
// version differs from the lease given is made due immediately after it.
func (s Leases) claimed(
	ctx context.Context, claim domain.Claim, lease *domain.Lease,
	change func(tx pgx.Tx, stored domain.Lease) (domain.Lease, error),
) error {
	var after domain.Lease
	var isChanged bool
	err := s.DB.change(ctx, func(tx pgx.Tx) error {
		stored, err := lockClaimed(ctx, tx, claim, *lease)
		if err != nil {
			return err
		}
		if after, err = change(tx, stored); err != nil {
			return err
		}
		if isChanged = stored.Version != lease.Version; isChanged {
			_, err = exec(ctx, tx, dueNowSQL, lease.ProjectID, lease.ID, claim.ID)
		}
		return err
	})
	if err != nil {
		return err
	}
	if isChanged {
		return domain.ErrChanged
	}
	lease.Version, lease.Seq, lease.UpdatedAt = after.Version, after.Seq, after.UpdatedAt
	lease.StartedAt, lease.EndedAt, lease.WarnedAt = after.StartedAt, after.EndedAt, after.WarnedAt
	lease.EndingSince = after.EndingSince
	return nil
}

// lockClaimed locks and reads a lease under its claim, with its reservations but without their hosts, or returns
// domain.ErrFenced.
func lockClaimed(ctx context.Context, tx pgx.Tx, claim domain.Claim, lease domain.Lease) (domain.Lease, error) {
	stored, err := queryOne[domain.Lease](ctx, tx, lockClaimedLeaseSQL, lease.ProjectID, lease.ID, claim.ID)
	if err != nil {
		return stored, ifNone(err, domain.ErrFenced)
	}
	stored.Reservations, err = queryAll[domain.Reservation](ctx, tx, reservationsSQL, []string{stored.ProjectID},
		[]uuid.UUID{stored.ID})
	return stored, err
}

// saveReservations writes the reservations that differ. isShown reports whether the API shows a difference.
func saveReservations(ctx context.Context, tx pgx.Tx, stored, lease domain.Lease) (isShown bool, err error) {
	for _, r := range lease.Reservations {
		n := slices.IndexFunc(stored.Reservations, func(s domain.Reservation) bool { return s.ID == r.ID })
		if n < 0 {
			return isShown, apperr.New(apperr.Internal, "internal error")
		}
		old := stored.Reservations[n]
		differs := old.Status != r.Status || !sameProblem(old.Problem, r.Problem) ||
			!slices.Equal(old.Flavors, r.Flavors) || !sameVolume(old.Volume, r.Volume)
		isShown = isShown || differs
		if !differs && old.ActionID == r.ActionID && old.AggregateID == r.AggregateID &&
			old.WasRunning == r.WasRunning && old.PreparedAt.Equal(r.PreparedAt) &&
			slices.Equal(old.Servers, r.Servers) && old.ActionsDone == r.ActionsDone {
			continue
		}
		if _, err = exec(ctx, tx, saveReservationSQL, lease.ProjectID, r.ID, r.Status, r.Problem, orNullID(r.ActionID),
			r.AggregateID, orEmpty(r.Flavors), r.WasRunning, orNull(r.PreparedAt), orEmpty(r.Servers),
			r.ActionsDone, r.Volume); err != nil {
			return isShown, err
		}
	}
	return isShown, nil
}

func sameProblem(a, b *domain.Problem) bool { return a == b || a != nil && b != nil && *a == *b }

func sameVolume(a, b *domain.LeasedVolume) bool { return a == b || a != nil && b != nil && *a == *b }

func saveLease(
	ctx context.Context, tx pgx.Tx, claim domain.Claim, stored, lease domain.Lease, isShown bool,
	claimFor time.Duration,
) (domain.Lease, error) {
	if stored.Status != lease.Status && !slices.Contains(domain.LeaseTransitions[stored.Status], lease.Status) {
		return lease, apperr.Wrap(apperr.Internal,
			fmt.Errorf("lease %s cannot change from %s to %s", lease.ID, stored.Status, lease.Status), "internal error")
	}
	isShown = isShown || stored.Status != lease.Status || !sameProblem(stored.Problem, lease.Problem) ||
		stored.Degraded != lease.Degraded || stored.StartResult != lease.StartResult ||
		stored.EndResult != lease.EndResult
	warns := stored.WarnedAt.IsZero() && !lease.WarnedAt.IsZero()
	isShown = isShown || warns
	return queryOne[domain.Lease](ctx, tx, saveLeaseSQL, lease.ProjectID, lease.ID, claim.ID, lease.Status,
		lease.Problem, lease.Degraded, lease.StartResult, orNull(lease.StartedAt), lease.EndResult,
		orNull(lease.EndedAt), orNull(lease.DueAt), lease.Attempts, isShown, orNullDuration(claimFor),
		hasDrifted(lease) && !hasDrifted(stored) || failsToEnd(lease) && !failsToEnd(stored), warns)
}

// hasDrifted reports whether an instance runs before its lease begins.
func hasDrifted(lease domain.Lease) bool {
	return lease.Problem != nil && lease.Problem.Code == domain.DriftCode
}

// failsToEnd reports whether the end of a lease has failed so often that its project has to hear of it.
func failsToEnd(lease domain.Lease) bool {
	return lease.Status == domain.LeaseEnding && lease.Attempts >= 3
}

// Finish ends a claimed lease with its event (Status is ended or cancelled), its reservations and its connection, and
// returns its instances and hosts. Nothing of it may be left in OpenStack. Errors are those of Save.
func (s Leases) Finish(ctx context.Context, claim domain.Claim, lease *domain.Lease) error {
	return s.claimed(ctx, claim, lease, func(tx pgx.Tx, stored domain.Lease) (domain.Lease, error) {
		if lease.Status.IsOpen() {
			return stored, apperr.Wrap(apperr.Internal, fmt.Errorf("lease %s is %s", lease.ID, lease.Status),
				"internal error")
		}
		if stored.Version != lease.Version {
			return stored, nil
		}
		if _, err := saveReservations(ctx, tx, stored, *lease); err != nil {
			return stored, err
		}
		if err := endAllocations(ctx, tx, lease.ProjectID, lease.ID); err != nil {
			return stored, err
		}
		if err := closeParts(ctx, tx, stored); err != nil {
			return stored, err
		}
		over := *lease
		over.DueAt, over.Attempts = time.Time{}, 0
		if over.EndedAt.IsZero() {
			now, err := queryValue[time.Time](ctx, tx, "select clock_timestamp()")
			if err != nil {
				return stored, err
			}
			over.EndedAt = now
		}
		return saveLease(ctx, tx, claim, stored, over, true, 0)
	})
}
