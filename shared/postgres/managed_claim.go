package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// While a project is claimed, it is due when the claim ends, unless something is declared in it meanwhile. So a process
// that dies loses nothing, and whoever releases the claim sees what has come.

var claimProjectsSQL = `
with claim as materialized (
    select clock_timestamp() + $2::interval as until
), due as (
    select p.project_id from managed_projects p
    where p.due_at <= now() and ` + unclaimedAt("p", "now()") + ` and ` + served("p") + `
    order by p.due_at limit $3
    for no key update skip locked
)
update managed_projects p set claim_id = $1, claimed_until = claim.until, due_at = claim.until
from due, claim where p.project_id = due.project_id
returning p.project_id, p.domain_id, p.due_at, p.scan_at, p.attempts, p.problem`

// ClaimProjects claims projects whose managed resources are due, the longest due first. Several replicas that claim at
// once get different projects.
func (s Managed) ClaimProjects(
	ctx context.Context, claimFor time.Duration, limit int,
) (claimed []domain.ManagedProject, claim domain.Claim, err error) {
	claim = domain.NewClaim()
	claimed, err = queryAll[domain.ManagedProject](ctx, s.DB.pool, claimProjectsSQL, claim.ID, claimFor, limit)
	claim.Acquired = len(claimed) > 0
	return claimed, claim, err
}

const renewProjectSQL = `
with claim as materialized (
    select clock_timestamp() + $3::interval as until
)
update managed_projects p
set claimed_until = claim.until, due_at = case when p.due_at = p.claimed_until then claim.until else p.due_at end
from claim where p.project_id = $1 and p.claim_id = $2`

// RenewProject prolongs the claim of a project. It is domain.ErrFenced when another replica has claimed it since.
func (s Managed) RenewProject(
	ctx context.Context, claim domain.Claim, projectID string, claimFor time.Duration,
) error {
	return fenced(exec(ctx, s.DB.pool, renewProjectSQL, projectID, claim.ID, claimFor))
}

var projectsDueSQL = `
select exists (select from managed_projects p
               where p.due_at <= now() + $1::interval and ` + served("p") + `
                 and ` + unclaimedAt("p", "now() + $1::interval") + `)`

// IsDue reports whether a project that nobody has claimed is due now or soon, so that it pays to wait for it.
func (s Managed) IsDue(ctx context.Context, soon time.Duration) (bool, error) {
	return queryValue[bool](ctx, s.DB.pool, projectsDueSQL, soon)
}

const (
	lockClaimedProjectSQL = `
select count(*) from (select from managed_projects where project_id = $1 and claim_id = $2 for update) locked`

	deleteEmptyProjectSQL = `
delete from managed_projects p where project_id = $1 and not exists (select from managed m where m.project_id = $1)`

	releaseProjectSQL = `
update managed_projects
set due_at = least(case when due_at = claimed_until then 'infinity' else due_at end, clock_timestamp() + $3::interval),
    scan_at = case when scan_at <= $7 then coalesce($6, scan_at) else scan_at end, attempts = $4, problem = $5,
    ` + releaseSQL + `
where project_id = $1 and claim_id = $2`
)

// ReleaseProject releases the claim of a project with its NextScanAt, Attempts and Problem. The project is due again
// after dueIn, or at once when something was declared in it since it was claimed. One without resources is deleted. It
// is domain.ErrFenced when another replica has claimed the project since.
func (s Managed) ReleaseProject(
	ctx context.Context, claim domain.Claim, project domain.ManagedProject, dueIn time.Duration,
) error {
	return s.DB.inTx(ctx, func(tx pgx.Tx) error {
		locked, err := queryValue[int64](ctx, tx, lockClaimedProjectSQL, project.ProjectID, claim.ID)
		if err := fenced(locked, err); err != nil {
			return err
		}
		deleted, err := exec(ctx, tx, deleteEmptyProjectSQL, project.ProjectID)
		if err != nil || deleted > 0 {
			return err
		}
		_, err = exec(ctx, tx, releaseProjectSQL, project.ProjectID, claim.ID, dueIn, project.Attempts,
			project.Problem, orNull(project.NextScanAt), project.ScanAt)
		return err
	})
}
