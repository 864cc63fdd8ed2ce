package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Queue returns the projects whose managed resources are due, the longest due first. While a project is claimed, it is
// due when the claim ends, unless something is declared in it meanwhile. So a process that dies loses nothing, and
// whoever releases the claim sees what has come.
func (s Managed) Queue() Queue[domain.ManagedProject] {
	key := func(p domain.ManagedProject) []any { return []any{p.ProjectID} }
	return Queue[domain.ManagedProject]{db: s.DB, key: key, spec: due.Queue{
		Table: "managed_projects", Key: []string{"project_id"},
		Columns: "project_id, domain_id, due_at, scan_at, attempts, problem",
		Where:   served("q"), Order: "q.due_at", OnClaim: "due_at = claim.until",
		OnRenew: "due_at = case when q.due_at = q.claimed_until then claim.until else q.due_at end",
	}}
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
    ` + due.ReleaseSQL + `
where project_id = $1 and claim_id = $2`
)

// ReleaseProject releases the claim of a project with its NextScanAt, Attempts and Problem. The project is due again
// after dueIn, or immediately when something was declared in it since it was claimed. One without resources is deleted.
// It is domain.ErrFenced when another replica has claimed the project since.
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
