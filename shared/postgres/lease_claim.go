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

// isClaimable leaves out leases (l) of projects that are not served, except ends, which give hosts back.
var isClaimable = `(` + isEnd + ` or ` + served("l") + `)`

var claimLeasesSQL = `
with due as (
    select l.project_id, l.id from leases l
    where l.due_at <= now() and ` + unclaimedAt("l", "now()") + ` and ` + isClaimable + `
    order by ` + isEnd + ` desc, case when ` + isEnd + ` then l.ends_at else l.starts_at end, l.id limit $3
    for no key update skip locked
)
update leases l set claim_id = $1, claimed_until = clock_timestamp() + $2::interval, due_at = now()
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

var nextLeaseSQL = `
select (select greatest(l.due_at, l.claimed_until) - now() from leases l
        where l.due_at <= now() + $1::interval and ` + isClaimable + `
          and ` + unclaimedAt("l", "now() + $1::interval") + `
        order by l.due_at limit 1)`

// NextDue returns how long it is until the next lease may be claimed: one that is due, and claimed by nobody, within
// soon. It may be negative; nil = no lease is due.
func (s Leases) NextDue(ctx context.Context, soon time.Duration) (left *time.Duration, err error) {
	return queryValue[*time.Duration](ctx, s.DB.pool, nextLeaseSQL, soon)
}

const retireLeasesSQL = `
delete from leases where status in ('ended', 'cancelled') and updated_at < now() - $1::interval`

// Retire deletes leases of all projects that ended longer ago than age, with their reservations and allocations.
func (s Leases) Retire(ctx context.Context, age time.Duration) error {
	_, err := exec(ctx, s.DB.pool, retireLeasesSQL, age)
	return err
}

const renewLeaseSQL = `
update leases set claimed_until = clock_timestamp() + $4::interval
where project_id = $1 and id = $2 and claim_id = $3 and claimed_until > clock_timestamp()`

// Renew prolongs the claim of a lease from now on. It is domain.ErrFenced when the claim has ended.
func (s Leases) Renew(ctx context.Context, claim domain.Claim, lease domain.Lease, claimFor time.Duration) error {
	return fenced(exec(ctx, s.DB.pool, renewLeaseSQL, lease.ProjectID, lease.ID, claim.ID, claimFor))
}
