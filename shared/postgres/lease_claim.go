package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// isEnd reports whether a due lease (l) ends.
const isEnd = `(l.status = 'ending' or l.ends_at <= clock_timestamp())`

var claimLeasesSQL = `
with due as (
    select l.project_id, l.id from leases l
    where l.due_at <= now() and ` + unclaimedAt("l", "now()") + `
    order by ` + isEnd + ` desc, case when ` + isEnd + ` then l.ends_at else l.starts_at end, l.id limit $3
    for no key update skip locked
)
update leases l set claim_id = $1, claimed_until = clock_timestamp() + $2::interval
from due where l.project_id = due.project_id and l.id = due.id
returning l.*, ` + isEnd + ` as is_end`

// Claim claims due leases of all projects, with their reservations and hosts: first those that end, then those that
// start, each the earliest first. Several replicas that claim at once get different leases.
func (s Leases) Claim(
	ctx context.Context, claimFor time.Duration, limit int,
) (claimed []domain.Lease, claim domain.Claim, err error) {
	type dueLease struct {
		domain.Lease

		IsEnd bool
	}
	claim = domain.NewClaim()
	due, err := queryAll[dueLease](ctx, s.DB.pool, "with claimed as ("+claimLeasesSQL+
		") select "+leaseColumns+", is_end from claimed", claim.ID, claimFor, limit)
	if err != nil {
		return nil, claim, err
	}
	slices.SortFunc(due, func(a, b dueLease) int {
		switch {
		case a.IsEnd && b.IsEnd:
			return cmp.Or(a.EndsAt.Compare(b.EndsAt), cmp.Compare(a.ID.String(), b.ID.String()))
		case a.IsEnd != b.IsEnd && a.IsEnd:
			return -1
		case a.IsEnd != b.IsEnd:
			return 1
		}
		return cmp.Or(a.StartsAt.Compare(b.StartsAt), cmp.Compare(a.ID.String(), b.ID.String()))
	})
	claimed = make([]domain.Lease, len(due))
	for n, d := range due {
		claimed[n] = d.Lease
	}
	claim.Acquired = len(claimed) > 0
	return claimed, claim, addParts(ctx, s.DB.pool, claimed)
}

var leasesDueSQL = `
select exists (select from leases l
               where l.due_at <= now() + $1::interval and ` + unclaimedAt("l",
	"now() + $1::interval") + `)`

// IsDue reports whether a lease that nobody has claimed is due now or soon, so that it pays to wait for it.
func (s Leases) IsDue(ctx context.Context, soon time.Duration) (bool, error) {
	return queryValue[bool](ctx, s.DB.pool, leasesDueSQL, soon)
}

const lostLeasesSQL = `
update leases l set due_at = clock_timestamp()
from connections c
where c.project_id = l.project_id and c.id = l.connection_id and c.status <> 'active'
  and l.status not in ('ended', 'cancelled') and l.problem->>'code' is distinct from 'delegation_lost'
  and coalesce(l.due_at, 'infinity') > now()`

// Lost makes open leases due whose connection has ended by itself, and says how many. A lease whose problem is
// delegation_lost already is left alone.
func (s Leases) Lost(ctx context.Context) (int64, error) {
	return exec(ctx, s.DB.pool, lostLeasesSQL)
}

const retireLeasesSQL = `
delete from leases where status in ('ended', 'cancelled') and updated_at < now() - $1::interval`

// Retire deletes leases of all projects that ended longer ago than age, with their reservations and allocations.
func (s Leases) Retire(ctx context.Context, age time.Duration) error {
	_, err := exec(ctx, s.DB.pool, retireLeasesSQL, age)
	return err
}
