package postgres

import (
	"context"
	"time"

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
