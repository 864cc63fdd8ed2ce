package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Deployments are what agents fetch once, and report ready once.
//
// An agent has no project: its token says what it may do, and only the token's hash is stored.
type Deployments struct{ DB *DB }

// Create stores a deployment before it is requested from Nova. Its token is valid for validFor.
func (d Deployments) Create(ctx context.Context, made domain.Deployment, validFor time.Duration) error {
	_, err := exec(ctx, d.DB.pool, `
insert into deployments (id, project_id, instance_id, image, token_sha256, bundle, expires_at, connection_id)
values ($1, $2, $3, $4, $5, $6, clock_timestamp() + $7::interval, $8)`,
		made.ID, made.ProjectID, made.InstanceID, made.Image, made.TokenHash, made.Bundle, validFor,
		orNullID(made.ConnectionID))
	return err
}

// Drop deletes a deployment that Nova has rejected.
func (d Deployments) Drop(ctx context.Context, projectID string, id uuid.UUID) error {
	_, err := exec(ctx, d.DB.pool, "delete from deployments where project_id = $1 and id = $2", projectID, id)
	return err
}

// refetch is how long a bundle may be fetched more than once: an answer may get lost on its way.
const refetch = time.Minute

// permittedSQL is true for a deployment d of an instance i that may still begin: it is the newest of the instance,
// which is managed and has a server, and its connection, if it has one, is active and manages the instance.
const permittedSQL = `
      i.project_id = d.project_id and i.id = d.instance_id and i.disconnected_at is null
          and i.state not in ('deleting', 'deleted')
  and d.expires_at > clock_timestamp()
  and (d.connection_id is null or d.connection_id = i.connection_id and exists (
      select from connections c
      where c.project_id = d.project_id and c.id = d.connection_id and c.status = 'active'
          and c.expires_at > clock_timestamp()))
  and not exists (select from deployments newer where newer.project_id = d.project_id
      and newer.instance_id = d.instance_id
                  and (newer.created_at, newer.id) > (d.created_at, d.id))`

const fetchSQL = `
update deployments d set fetched_at = coalesce(d.fetched_at, clock_timestamp()) from instances i
where d.id = $1 and d.token_sha256 = $2 and d.bundle is not null
  and coalesce(d.fetched_at, clock_timestamp()) > clock_timestamp() - $3::interval
  and not exists (select from connections c
                  where c.project_id = d.project_id and c.id = d.connection_id and c.suspended_at is not null)
  and ` + permittedSQL + `
returning d.bundle`

// Fetch gives an agent its bundle: once, and within a minute after that repeatedly. NotFound whatever is wrong.
func (d Deployments) Fetch(ctx context.Context, id uuid.UUID, tokenHash []byte) (bundle []byte, err error) {
	bundle, err = queryValue[[]byte](ctx, d.DB.pool, fetchSQL, id, tokenHash, refetch)
	return bundle, ifNone(err, noDeployment())
}

func noDeployment() error {
	return apperr.New(apperr.NotFound, "unknown deployment, or its token is used up or too old")
}

// The instance is locked first, so that it cannot be disconnected between the two updates.
const readySQL = `
with permitted as (
    select d.id from instances i, deployments d
    where d.id = $1 and d.token_sha256 = $2 and d.fetched_at is not null and d.ready_at is null
      and ` + permittedSQL + `
    for update of i, d
), after as (
    update deployments d set ready_at = clock_timestamp(), bundle = null from permitted p where d.id = p.id
    returning d.project_id, d.instance_id, d.id, d.image, d.ready_at
), instance as (
    update instances i set seq = i.seq + 1 from after d
    where i.project_id = d.project_id and i.id = d.instance_id
    returning i.project_id, i.id, i.server_id, i.order_id, i.connection_id, i.seq, d.id as deployment_id,
        d.image as agent_image, d.ready_at
), event as (
    insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
    select project_id, id::text, seq, '` + domain.AgentReadyEvent + `', ready_at, order_id, connection_id,
           jsonb_strip_nulls(jsonb_build_object(
               'instance_id', id, 'server_id', server_id, 'deployment_id', deployment_id, 'image', agent_image,
               'order_id', order_id, 'connection_id', connection_id))
    from instance
)
select count(*) from after`

// Ready records that an agent which has fetched its bundle runs, once, with its event. NotFound whatever is wrong, also
// the second time.
func (d Deployments) Ready(ctx context.Context, id uuid.UUID, tokenHash []byte) error {
	n, err := write(ctx, d.DB, queryValue[int], readySQL, id, tokenHash)
	if err == nil && n == 0 {
		return noDeployment()
	}
	return err
}
