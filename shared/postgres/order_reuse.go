package postgres

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// imageIDSQL matches the id of an image.
	imageIDSQL = `'^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'`

	// An idle instance is stopped, and has no running order or action. The smallest that suffices is taken, of those
	// that the connection has launched or their owner has marked as reusable. An image's name is compared where it is
	// known: run-connections compares the image itself before it uses the server. Nova shows no image
	// of a server that boots from a volume.
	reuseSQL = `
with idle as (
    select i.project_id, i.id from instances i
    where i.project_id = $1 and i.connection_id = $2 and i.state = 'stopped' and i.disconnected_at is null
      and i.missed_at is null and i.server_id is not null
      and coalesce(i.reusable, i.origin = '` + domain.OriginLaunched + `') and i.id <> $10
      and coalesce(i.spec->'metadata', '{}') @> $5
      and (i.spec->>'vcpus')::int >= $6 and (i.spec->>'ram_mb')::int >= $7
      and coalesce((i.spec->>'disk_gb')::int, 0) >= $8
      and coalesce(i.spec->>'image_id', '') <> '' and not coalesce(i.spec->'volumes', '[]') @> '[{"boot": true}]'
      and ($9 in (i.spec->>'image_id', i.spec->>'image')
           or $9 !~ ` + imageIDSQL + ` and (i.spec->>'image' is null or i.spec->>'image' ~ ` + imageIDSQL + `))
      and not exists (select from actions a where a.project_id = i.project_id and a.instance_id = i.id
                      and a.status = 'running')
      and not exists (select from orders o where o.project_id = i.project_id and o.id = i.order_id
                      and o.status = 'running')
    order by ($9 in (i.spec->>'image_id', i.spec->>'image')) is not true, (i.spec->>'ram_mb')::int,
             (i.spec->>'vcpus')::int, i.created_at
    limit 1 for update skip locked
)
update instances i set order_id = $3, position = $4, updated_at = clock_timestamp()
from idle where i.project_id = idle.project_id and i.id = idle.id`

	// The image of a released instance is known now. A server that is deleted needs no event.
	releaseReusedSQL = `
with row as (
    update instances
    set order_id = null, position = 0, seq = seq + (state <> 'deleted')::int, updated_at = clock_timestamp(),
        spec = case when $4 = '' then spec else jsonb_set(spec - 'image', '{image_id}', to_jsonb($4::text)) end
    where project_id = $1 and id = $2 and order_id = $3 and server_id is not null
    returning *, state as previous_state, null::jsonb as actor
), event as (` + instanceEventSQL + ` row where state <> 'deleted')
select count(*) from row`

	markReusableSQL = `
update instances set reusable = $3
where project_id = $1 and (server_id = $2 or id = $2::text::uuid) and connection_id is not null
  and disconnected_at is null and state <> 'deleted'
returning ` + instanceColumns
)

const lockClaimedSQL = "select from orders o where " + orderClaimed + " and status = 'running' for update"

// takeIdle makes an idle instance of the order's connection, other than one, the order's nth instance. taken is false
// when no idle instance suffices for spec.
func takeIdle(
	ctx context.Context, tx pgx.Tx, order domain.Order, n int, spec domain.LaunchSpec, other uuid.UUID,
) (taken bool, err error) {
	labels := spec.Metadata
	if labels == nil {
		labels = map[string]string{}
	}
	image := spec.ImageID
	if image == "" {
		image = spec.ImageRef
	}
	written, err := exec(ctx, tx, reuseSQL, order.ProjectID, order.ConnectionID, order.ID, n, labels, spec.VCPUs,
		spec.RAMMB, spec.DiskGB, image, other)
	return written == 1, err
}

// ReplaceReused replaces the nth instance of an order, an idle one that is deleted or has another image (has; "" = not
// known), by another idle instance of the connection, or by replacement. The old one is idle again, if its server
// exists. It is domain.ErrFenced when the claim has expired. With a Problem, and where the connection's quota has no
// room, replacement is an instance that failed.
func (o Orders) ReplaceReused(
	ctx context.Context, order domain.Order, claim domain.Claim, n int, has string, replacement domain.Instance,
) error {
	return o.DB.change(ctx, func(tx pgx.Tx) error {
		return replaceReused(ctx, tx, order, claim, n, has, replacement)
	})
}

func replaceReused(
	ctx context.Context, tx pgx.Tx, order domain.Order, claim domain.Claim, n int, has string,
	replacement domain.Instance,
) error {
	if err := fenced(exec(ctx, tx, lockClaimedSQL, order.ProjectID, order.ID, claim.ID)); err != nil {
		return err
	}
	// An order that comes at the same moment waits here.
	if err := admitOr(ctx, tx, order, domain.Need{}, &replacement); err != nil {
		return err
	}
	old := order.Instances[n].ID
	released, err := queryValue[int](ctx, tx, releaseReusedSQL, order.ProjectID, old, order.ID, has)
	if err != nil || released == 0 {
		return err
	}
	if replacement.Problem == nil {
		taken, err := takeIdle(ctx, tx, order, n, replacement.Spec, old)
		if err != nil {
			return err
		}
		if taken {
			_, err = tx.Exec(ctx, reusedSQL, order.ProjectID, order.ID, []int{n})
			return err
		}
	}
	return replaceByNew(ctx, tx, order, n, replacement)
}

// replaceByNew stores replacement as the order's nth instance, as far as the connection's quota has room for it.
func replaceByNew(ctx context.Context, tx pgx.Tx, order domain.Order, n int, replacement domain.Instance) error {
	if replacement.Problem == nil {
		var more domain.Need
		more.Add(replacement.Spec)
		if err := admitOr(ctx, tx, order, more, &replacement); err != nil {
			return err
		}
	}
	order.Instances = slices.Clone(order.Instances)
	order.Instances[n] = replacement
	if err := insertInstances(ctx, tx, order, []int{n}); err != nil || replacement.Problem == nil {
		return err
	}
	replacement.State = domain.InstanceError
	_, err := changeAll(ctx, tx, []domain.Instance{replacement}, nil)
	return err
}

// admitOr checks the connection and the spec of i as admit does, and gives i a Problem when more does not fit the
// connection's quota.
func admitOr(ctx context.Context, tx pgx.Tx, order domain.Order, more domain.Need, i *domain.Instance) error {
	var specs []domain.LaunchSpec
	if i.Problem == nil { // else no server will be made
		specs = append(specs, i.Spec)
	}
	err := admit(ctx, tx, order.ProjectID, order.ConnectionID, domain.MayAllocate, more, specs...)
	if apperr.CodeOf(err) != apperr.Quota {
		return err
	}
	if i.Problem == nil {
		i.Problem = &domain.Problem{Code: string(apperr.Quota), Detail: apperr.As(err).Message}
	}
	return nil
}

// MarkReusable reports whether orders with reuse may take a server that is managed through a connection. id is the
// server's or its instance's. found is false when the project has no such instance.
func (i Instances) MarkReusable(
	ctx context.Context, projectID, id string, reusable bool,
) (marked domain.Instance, found bool, err error) {
	return queryFound[domain.Instance](ctx, i.DB.pool, markReusableSQL, projectID, id, reusable)
}
