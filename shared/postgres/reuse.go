package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// imageIDSQL is what an image's id looks like.
	imageIDSQL = `'^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'`

	// An instance is idle that is stopped, and that nobody has ordered or asked anything of that is still to be done.
	// The smallest that suffices is taken, of those that the connection has launched or their owner has marked. A name
	// of an image is compared where it is known: what image it is, and what the server has, run-connections compares
	// before the server is used.
	reuseSQL = `
with idle as (
    select i.project_id, i.id from instances i
    where i.project_id = $1 and i.connection_id = $2 and i.state = 'stopped' and i.disconnected_at is null and i.missed_at is null
      and i.server_id is not null and coalesce(i.reusable, i.origin = '` + domain.OriginLaunched + `') and i.id <> $10
      and coalesce(i.spec->'metadata', '{}') @> $5
      and (i.spec->>'vcpus')::int >= $6 and (i.spec->>'ram_mb')::int >= $7 and coalesce((i.spec->>'disk_gb')::int, 0) >= $8
      and coalesce(i.spec->>'image_id', '') <> ''
      and ($9 in (i.spec->>'image_id', i.spec->>'image')
           or $9 !~ ` + imageIDSQL + ` and (i.spec->>'image' is null or i.spec->>'image' ~ ` + imageIDSQL + `))
      and not exists (select from actions a where a.project_id = i.project_id and a.instance_id = i.id and a.status = 'running')
      and not exists (select from orders o where o.project_id = i.project_id and o.id = i.order_id and o.status = 'running')
    order by ($9 in (i.spec->>'image_id', i.spec->>'image')) is not true, (i.spec->>'ram_mb')::int, (i.spec->>'vcpus')::int, i.created_at
    limit 1 for update skip locked
)
update instances i set order_id = $3, position = $4, updated_at = clock_timestamp()
from idle where i.project_id = idle.project_id and i.id = idle.id`

	lockClaimedSQL = `
select from orders where project_id = $1 and id = $2 and claim_id = $3 and claimed_until > clock_timestamp() and status = 'running' for update`

	// The image of a released instance is known now. A server that is gone needs no event.
	releaseReusedSQL = `
with row as (
    update instances set order_id = null, position = 0, seq = seq + (state <> 'deleted')::int, updated_at = clock_timestamp(),
        spec = case when $4 = '' then spec else jsonb_set(spec - 'image', '{image_id}', to_jsonb($4::text)) end
    where project_id = $1 and id = $2 and order_id = $3 and server_id is not null
    returning *, state as previous_state, null::jsonb as actor
), event as (` + instanceEventSQL + ` row where state <> 'deleted')
select count(*) from row`
)

// takeIdle gives an idle instance of the order's connection, other than one, to the nth place of the order, if there is
// one that is as spec asks for.
func takeIdle(ctx context.Context, tx pgx.Tx, order domain.Order, n int, spec domain.LaunchSpec, other uuid.UUID) (taken bool, err error) {
	labels := spec.Metadata
	if labels == nil {
		labels = map[string]string{}
	}
	image := spec.ImageID
	if image == "" {
		image = spec.ImageRef
	}
	tag, err := tx.Exec(ctx, reuseSQL, order.ProjectID, order.ConnectionID, order.ID, n, labels, spec.VCPUs, spec.RAMMB, spec.DiskGB, image, other)
	return tag.RowsAffected() == 1, err
}

// ReplaceReused gives the nth place of an order to another idle instance of the connection, or to wanted, because the
// idle one that had it is gone or has another image (has; "" = not known). That one is idle again, if it is there. The
// claim must hold, or it is domain.ErrFenced. With a Problem, and where the connection's quota has no room, wanted is
// an instance that could not be had.
func (o Orders) ReplaceReused(ctx context.Context, order domain.Order, claim domain.Claim, n int, has string, wanted domain.Instance) error {
	return retryDeadlock(func() error {
		return o.DB.inTx(ctx, func(tx pgx.Tx) error { return replaceReused(ctx, tx, order, claim, n, has, wanted) })
	})
}

func replaceReused(ctx context.Context, tx pgx.Tx, order domain.Order, claim domain.Claim, n int, has string, wanted domain.Instance) error {
	held, err := tx.Exec(ctx, lockClaimedSQL, order.ProjectID, order.ID, claim.ID)
	if err != nil {
		return err
	}
	if held.RowsAffected() == 0 {
		return domain.ErrFenced
	}
	// An order that comes at the same moment waits here.
	if err := admitOr(ctx, tx, order, domain.Need{}, &wanted); err != nil {
		return err
	}
	var given int
	old := order.Instances[n].ID
	if err := tx.QueryRow(ctx, releaseReusedSQL, order.ProjectID, old, order.ID, has).Scan(&given); err != nil || given == 0 {
		return err
	}
	if wanted.Problem == nil {
		taken, err := takeIdle(ctx, tx, order, n, wanted.Spec, old)
		if err != nil {
			return err
		}
		if taken {
			_, err = tx.Exec(ctx, reusedSQL, order.ProjectID, order.ID, []int{n})
			return err
		}
	}
	return replaceByNew(ctx, tx, order, n, wanted)
}

// replaceByNew stores an instance in the nth place, as far as the connection's quota has room for it.
func replaceByNew(ctx context.Context, tx pgx.Tx, order domain.Order, n int, wanted domain.Instance) error {
	if wanted.Problem == nil {
		var more domain.Need
		more.Add(wanted.Spec)
		if err := admitOr(ctx, tx, order, more, &wanted); err != nil {
			return err
		}
	}
	there := make([]bool, n+1)
	one := order
	one.Instances = make([]domain.Instance, n+1)
	for k := range n {
		there[k] = true
	}
	one.Instances[n] = wanted
	if err := insertInstances(ctx, tx, one, there); err != nil || wanted.Problem == nil {
		return err
	}
	wanted.State = domain.InstanceError
	_, err := changeAll(ctx, tx, []domain.Instance{wanted})
	return err
}

// admitOr checks the connection and what wanted is to be made of as admit does, and gives wanted a Problem when more
// does not fit the connection's quota.
func admitOr(ctx context.Context, tx pgx.Tx, order domain.Order, more domain.Need, wanted *domain.Instance) error {
	var specs []domain.LaunchSpec
	if wanted.Problem == nil { // else there is no server to be made
		specs = append(specs, wanted.Spec)
	}
	err := admit(ctx, tx, order.ProjectID, order.ConnectionID, domain.MayAllocate, more, specs...)
	if apperr.CodeOf(err) != apperr.Quota {
		return err
	}
	if wanted.Problem == nil {
		wanted.Problem = &domain.Problem{Code: string(apperr.Quota), Detail: apperr.As(err).Message}
	}
	return nil
}

// MarkReusable says whether orders with reuse may take a server that is managed through a connection, by its own id or
// its instance's. found is false when the project has no such instance.
func (i Instances) MarkReusable(ctx context.Context, projectID, id string, reusable bool) (marked domain.Instance, found bool, err error) {
	rows, _ := i.DB.pool.Query(ctx, `
update instances set reusable = $3
where project_id = $1 and (server_id = $2 or id = $2::text::uuid) and connection_id is not null and disconnected_at is null and state <> 'deleted'
returning `+instanceColumns, projectID, id, reusable)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Instance])
	if err != nil || len(list) == 0 {
		return marked, false, classify(err)
	}
	return list[0], true, nil
}
