package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// releasable selects the instances (i) whose floating IPs are to be released within $1: their servers are deleted.
	// Who disconnects an instance keeps its floating IP.
	releasable = `i.state = 'deleted' and i.disconnected_at is null
    and i.floating_ip_release_at <= now() + $1::interval`

	recordFloatingIPSQL = `
update instances i set floating_ip = $5 from orders o
where ` + orderClaimed + ` and i.project_id = o.project_id and i.order_id = o.id and i.id = $4`

	finishReleaseSQL = `
update instances set floating_ip_release_at = null where project_id = $1 and id = $2`
)

// claimReleasesSQL delays what it claims, each time for longer: the condition is checked again when the row is locked.
var claimReleasesSQL = `
with claimed (claimed_project, claimed_id) as (
    select project_id, id from (
        select i.project_id, i.id, i.floating_ip_release_at as due,
               row_number() over (partition by i.project_id order by i.floating_ip_release_at) as n
        from instances i where ` + releasable + ` and ` + served("i") + `) ranked
    where n <= $2 order by due limit $3)
update instances i set floating_ip_release_at = now() + greatest(now() - i.updated_at, interval '1 minute')
from claimed where i.project_id = claimed_project and i.id = claimed_id and ` + releasable + `
returning ` + instanceColumns

// RecordFloatingIP writes the outcome of domain.StepFloatingIP. It is domain.ErrFenced when the claim has expired.
func (o Orders) RecordFloatingIP(
	ctx context.Context, order domain.Order, claim domain.Claim, instance uuid.UUID, f domain.InstanceFloatingIP,
) error {
	return fenced(exec(ctx, o.DB.pool, recordFloatingIPSQL, order.ProjectID, order.ID, claim.ID, instance, f))
}

// DueReleases is when a floating IP is to be released.
func DueReleases() string {
	return "select min(i.floating_ip_release_at) from instances i where " + releasable + " and " + served("i")
}

// ClaimReleases lists deleted instances whose floating IPs are to be released, at most so many of each project and of
// all. Those that are not finished are due again after a minute, later after as long as they have been deleted.
func (p Polls) ClaimReleases(ctx context.Context, ofProject, limit int) ([]domain.Instance, error) {
	return queryAll[domain.Instance](ctx, p.DB.pool, claimReleasesSQL, time.Duration(0), ofProject, limit)
}

// FinishRelease writes that no floating IP of an instance is left to release.
func (p Polls) FinishRelease(ctx context.Context, projectID string, id uuid.UUID) error {
	_, err := exec(ctx, p.DB.pool, finishReleaseSQL, projectID, id)
	return err
}
