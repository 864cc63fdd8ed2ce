package postgres

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// unreleased selects the instances (i) whose servers are deleted, and whose floating IPs may be left. After a day they
// are left to their project: the service account may not be permitted to delete them.
const unreleased = `i.state = 'deleted' and i.spec ? 'floating_ip' and i.floating_ip_released_at is null
    and i.spec -> 'floating_ip' ->> 'address' is null and i.server_id is not null and i.disconnected_at is null
    and not i.remote and i.updated_at > now() - interval '1 day'`

const recordFloatingIPSQL = `
update instances i set floating_ip = $5 from orders o
where ` + orderClaimed + ` and i.project_id = o.project_id and i.order_id = o.id and i.id = $4`

var unreleasedSQL = `
select ` + instanceColumns + ` from instances i
where ` + unreleased + ` and ` + served("i") + `
order by i.updated_at limit $1`

// RecordFloatingIP writes the outcome of domain.StepFloatingIP. It is domain.ErrFenced when the claim has expired.
func (o Orders) RecordFloatingIP(
	ctx context.Context, order domain.Order, claim domain.Claim, instance uuid.UUID, f domain.InstanceFloatingIP,
) error {
	return fenced(exec(ctx, o.DB.pool, recordFloatingIPSQL, order.ProjectID, order.ID, claim.ID, instance, f))
}

// ListUnreleased lists deleted instances of all projects whose floating IPs may be left, those first that were deleted
// first.
func (p Polls) ListUnreleased(ctx context.Context, limit int) ([]domain.Instance, error) {
	return queryAll[domain.Instance](ctx, p.DB.pool, unreleasedSQL, limit)
}

// RecordReleased writes that no floating IP of an instance is left.
func (i Instances) RecordReleased(ctx context.Context, projectID string, id uuid.UUID) error {
	_, err := exec(ctx, i.DB.pool, `
update instances set floating_ip_released_at = clock_timestamp() where project_id = $1 and id = $2`, projectID, id)
	return err
}
