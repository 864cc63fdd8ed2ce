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

// Leases are the leases of projects with their reservations, and what run-leases does with them. One replica at a time
// works on a lease (claim.go).
type Leases struct{ DB *DB }

const (
	leaseColumns = `
id, project_id, domain_id, user_id, name, status, problem, degraded, starts_at, ends_at, before_end, on_end,
enforce, connection_id, shares_connection, order_id, actor, start_result, started_at, ending_since,
end_result, ended_at, warned_at,
seq, version, due_at, attempts, created_at, updated_at`

	// leaseEventSQL writes the event of a lease's new status, from rows "after" of leases with previous_status.
	leaseEventSQL = `
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, id::text, seq, '` + domain.LeaseEvent + `', updated_at, ` + leaseEventData + `
    from`

	leaseEventData = `jsonb_strip_nulls(jsonb_build_object(
               'lease_id', id, 'name', name, 'status', status, 'previous_status', previous_status, 'reason', problem,
               'degraded', degraded, 'start', ` + startText + `, 'end', ` + endText + `,
               'instance_ids', ` + leasedInstances + `, 'volume_ids', ` + leasedVolumes + `,
               'servers', ` + changedServers + `, 'actor', actor))`

	// leasedInstances are the instances of a lease in the row "after"; null = none.
	leasedInstances = `(
    select jsonb_agg(r.instance_id order by r.position) from reservations r
    where r.project_id = after.project_id and r.lease_id = after.id and r.instance_id is not null)`

	// leasedVolumes are the volumes of a lease in the row "after", as far as they are made; null = none.
	leasedVolumes = `(
    select jsonb_agg(r.volume->'id' order by r.position) from reservations r
    where r.project_id = after.project_id and r.lease_id = after.id and r.volume ? 'id')`

	// changedServers are the servers that the end of a lease in the row "after" did more to than on_end; null = none.
	changedServers = `(
    select jsonb_agg(jsonb_build_object('server_id', s->'id', 'name', s->'name', 'detail', s->'did'))
    from reservations r, jsonb_array_elements(r.servers) s
    where r.project_id = after.project_id and r.lease_id = after.id and s ? 'did')`

	startText = `to_char(starts_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
	endText   = `to_char(ends_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
)

// Now is the database's clock.
func (s Leases) Now(ctx context.Context) (time.Time, error) { return s.DB.Now(ctx) }

// Get reads a lease of the project with its reservations and their hosts.
func (s Leases) Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Lease, error) {
	found, err := oneLease(ctx, s.DB.pool,
		"select "+leaseColumns+" from leases where project_id = $1 and id = $2", projectID, id)
	return found, orNotFound(err, "unknown lease %s", id)
}

// Ids are version 7: the order of time.
const listLeasesSQL = `
select ` + leaseColumns + ` from leases l
where project_id = $1 and (cardinality($2::text[]) = 0 or status = any($2::text[]))
  and ($3 = '' or position(lower($3) in lower(name)) > 0)
  and ($4 = '' or exists (select from reservations r
                          where r.project_id = l.project_id and r.lease_id = l.id and r.type = $4))
  and ($7::uuid is null or exists (select from reservations r where r.project_id = l.project_id
                                   and r.lease_id = l.id and r.instance_id = $7))
  and id < $5 order by id desc limit $6`

// List reads a page of the project's leases with their reservations, the newest first.
func (s Leases) List(ctx context.Context, projectID string, q domain.LeaseQuery) ([]domain.Lease, error) {
	if q.Marker == uuid.Nil {
		q.Marker = uuid.Max
	}
	found, err := queryAll[domain.Lease](ctx, s.DB.pool, listLeasesSQL, projectID, orEmpty(q.Statuses), q.Name, q.Type,
		q.Marker, q.Limit, orNullID(q.Instance))
	if err != nil {
		return nil, err
	}
	return found, addParts(ctx, s.DB.pool, found)
}

// oneLease reads the only lease with its reservations and their hosts.
func oneLease(ctx context.Context, db querier, sql string, args ...any) (domain.Lease, error) {
	found, err := queryOne[domain.Lease](ctx, db, sql, args...)
	if err != nil {
		return found, err
	}
	return withParts(ctx, db, found)
}

// withParts is a lease with its reservations and their hosts.
func withParts(ctx context.Context, db querier, lease domain.Lease) (domain.Lease, error) {
	one := []domain.Lease{lease}
	err := addParts(ctx, db, one)
	return one[0], err
}

// addParts reads the reservations of leases and their hosts.
func addParts(ctx context.Context, db querier, leases []domain.Lease) error {
	if len(leases) == 0 {
		return nil
	}
	projects, ids := make([]string, len(leases)), make([]uuid.UUID, len(leases))
	for n, l := range leases {
		projects[n], ids[n] = l.ProjectID, l.ID
	}
	reservations, err := queryAll[domain.Reservation](ctx, db, reservationsSQL, projects, ids)
	if err != nil {
		return err
	}
	allocations, err := queryAll[domain.Allocation](ctx, db, allocationsSQL, projects, ids)
	if err != nil {
		return err
	}
	for n := range leases {
		leases[n].Reservations = reservationsOf(leases[n], reservations, allocations)
	}
	return nil
}

// lockLease locks a lease until the transaction ends, and reads it.
func lockLease(ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID) (domain.Lease, error) {
	found, err := oneLease(ctx, tx, "select "+leaseColumns+
		" from leases where project_id = $1 and id = $2 for no key update", projectID, id)
	return found, orNotFound(err, "unknown lease %s", id)
}

const (
	openLeasesSQL = `select count(*) from leases where project_id = $1 and status not in ('ended', 'cancelled')`

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

// Create stores a pending lease, or one that is active immediately, with its connection, its reservations, their hosts
// and its event in one transaction. It is a Conflict when the project has as many open leases as the rules allow, and a
// domain.FreeError when an instance is in another lease then, or hosts are not free. A lease with a BodySHA256 is
// stored once: the same request gets the stored one, Repeated, and another request with its id is a Conflict.
func (s Leases) Create(ctx context.Context, made domain.NewLease) (domain.Lease, error) {
	return changeValue(ctx, s.DB, func(tx pgx.Tx) (domain.Lease, error) { return createLease(ctx, tx, made) })
}

// Check returns the lease as Create would store it, or its error, and stores nothing: a dry run.
func (s Leases) Check(ctx context.Context, made domain.NewLease) (checked domain.Lease, err error) {
	err = s.DB.change(ctx, func(tx pgx.Tx) (err error) {
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
	if err := lockName(ctx, tx, "leases", lease.ProjectID); err != nil {
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
	if err := checkPeriod(lease, made.Rules); err != nil {
		return err
	}
	return fits(ctx, tx, made.Rules.PerProject, "leases in a project that have not ended", openLeasesSQL,
		lease.ProjectID)
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

const everTrackedSQL = `select exists (select from instances where project_id = $1 and server_id = $2)`

// Adopt stores an instance for a server that no instance has or had, with a lease of it. isNew is false when there is
// one: a server is adopted once, whatever its user does with its instance and its lease afterwards.
func (s Leases) Adopt(
	ctx context.Context, server domain.Instance, made domain.NewLease,
) (isNew bool, err error) {
	isNew, err = changeValue(ctx, s.DB, func(tx pgx.Tx) (bool, error) { return adoptServer(ctx, tx, server, made) })
	return isNew && err == nil, err
}

func adoptServer(
	ctx context.Context, tx pgx.Tx, server domain.Instance, made domain.NewLease,
) (isNew bool, err error) {
	if err := lockName(ctx, tx, "server", server.ProjectID, server.ServerID); err != nil {
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
