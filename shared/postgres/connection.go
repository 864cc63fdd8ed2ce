package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Connections are what users have delegated. Only run-connections reads their secrets (delegation.go).
type Connections struct{ DB *DB }

const (
	connectionColumns = `
id, project_id, domain_id, user_id, name, kind, auth_url, region, delegation_id, acts_as, actions, quota, limits,
    usable_by,
nullif(usable_names, '[]') as usable_names, flavors, ` + shownStatus + ` as status, reason, revoked,
trust_expires_at, expires_at,
coalesce(idle_timeout, interval '0') as idle_timeout, last_used_at, created_at, updated_at, checked_at, generation, seq,
credential_expires_at, suspended_at, resumed_at, lease_id, managed`

	// A suspended connection is stored as active, because it ends as an active one does.
	shownStatus = `case when status = 'active' and suspended_at is not null then 'suspended' else status end`

	// Those of leases and of managed resources can only be read. They do not count for the project's limit.
	isShown = `lease_id is null and not managed`

	endsAt = `least(expires_at, coalesce(last_used_at, created_at) + idle_timeout)`
)

// idleBy is the condition that a connection ends by a moment because it was not used, and the order by which the index
// connections_idle_end answers it without reading others. Both have no time zone, because an index cannot have what
// depends on that of the session.
func idleBy(moment string) string {
	const idleEnd = "(coalesce(last_used_at, created_at) at time zone 'UTC') + idle_timeout"
	return "status = 'active' and idle_timeout is not null and " + idleEnd + " <= (" + moment + ") at time zone 'UTC'" +
		" order by " + idleEnd
}

// usedBy counts what runs through a connection: every instance that has, or may have, a server, with the volumes and
// the floating IP that are made for it, and deleted with it. The floating IP counts until it is released.
func usedBy(projectID, id string) string {
	return `
select count(*)::int as instances, coalesce(sum((spec->>'vcpus')::int), 0)::int as vcpus,
       coalesce(sum((spec->>'ram_mb')::int), 0)::int as ram_mb,
       coalesce(sum(v.volumes), 0)::int as volumes, coalesce(sum(v.gigabytes), 0)::int as gigabytes,
       count(*) filter (where spec ? 'floating_ip' and not spec->'floating_ip' ? 'address')::int + (
           select count(*) from instances
           where project_id = ` + projectID + ` and connection_id = ` + id + ` and state = 'deleted'
             and disconnected_at is null and floating_ip_release_at is not null)::int as floating_ips
from instances
cross join lateral (
    select count(*) as volumes, sum((one->>'size_gb')::int) as gigabytes
    from jsonb_array_elements(spec->'volumes') one where not one ? 'id') v
where project_id = ` + projectID + ` and connection_id = ` + id + ` and state <> 'deleted'
  and (server_id is not null or problem is null)`
}

func noConnection(id uuid.UUID) error {
	return apperr.New(apperr.NotFound, "there is no connection %s", id)
}

// connectionEventSQL writes the event of a connection's new status, from rows of connections with previous_status and
// actor. The rows hold only what it needs: functions that serve HTTP may write secrets and not read them.
const connectionEventSQL = `
    insert into events (project_id, subject, seq, type, at, connection_id, data)
    select project_id, id::text, seq, '` + domain.ConnectionEvent + `', updated_at, id,
           jsonb_strip_nulls(jsonb_build_object('connection_id', id, 'status', status, 'previous_status',
               previous_status,
                                                'reason', nullif(reason, ''), 'actor', actor))
    from`

const (
	countConnectionsSQL = `select count(*) from connections
where project_id = $1 and status = 'active' and ` + isShown

	insertConnectionSQL = `
with after as (
    insert into connections (id, project_id, domain_id, user_id, name, kind, auth_url, region, delegation_id, secret,
        acts_as, actions,
                             quota, usable_by, flavors, status, expires_at, idle_timeout, trust_expires_at, seq,
                                 revoked, checked_at,
                             next_check_at, credential_expires_at, limits, usable_names, lease_id,
                             managed)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 'active', $16, $17, $18, 1,
        $6 <> 'trust', clock_timestamp(),
            clock_timestamp() + $19::interval * (0.8 + 0.4 * random()), $20, $22, $23, $24, $25)
    returning ` + connectionColumns + `, null::text as previous_status, $21::jsonb as actor
), event as (` + connectionEventSQL + ` after where ` + isShown + `)
select ` + connectionColumns + ` from after`
)

// Create stores an active connection. It is a Conflict when the project has domain.MaxConnections already.
func (c Connections) Create(ctx context.Context, made domain.Connection) (stored domain.Connection, err error) {
	return c.create(ctx, made, nil)
}

// CreateGranted stores a connection and marks the request for it as granted, or does neither.
func (c Connections) CreateGranted(
	ctx context.Context, made domain.Connection, g domain.Grant,
) (stored domain.Connection, err error) {
	return c.create(ctx, made, &g)
}

func (c Connections) create(
	ctx context.Context, made domain.Connection, granted *domain.Grant,
) (domain.Connection, error) {
	return changeValue(ctx, c.DB, func(tx pgx.Tx) (domain.Connection, error) {
		if granted != nil {
			if err := finishGrant(ctx, tx, *granted, made.ID); err != nil {
				return made, err
			}
		}
		if err := lockName(ctx, tx, "connections", made.ProjectID); err != nil {
			return made, err
		}
		err := fits(ctx, tx, domain.MaxConnections, "connections in a project", countConnectionsSQL, made.ProjectID)
		if err != nil {
			return made, err
		}
		return insertConnection(ctx, tx, made)
	})
}

// insertConnection stores a connection, whose trust is announced no longer. A hidden one has no event.
func insertConnection(ctx context.Context, tx pgx.Tx, made domain.Connection) (domain.Connection, error) {
	if made.TrustIntent != uuid.Nil {
		if err := keepTrust(ctx, tx, made.ProjectID, made.TrustIntent); err != nil {
			return made, err
		}
	}
	return queryOne[domain.Connection](ctx, tx, insertConnectionSQL, made.ID, made.ProjectID, made.DomainID,
		made.UserID,
		made.Name, made.Kind, made.AuthURL, made.Region, made.DelegationID, made.Secret, made.ActsAs, made.Actions,
		made.Quota,
		made.UsableBy, made.Flavors, made.ExpiresAt, orNullDuration(made.IdleTimeout), orNull(made.TrustExpiresAt),
		domain.CheckEvery, orNull(made.CredentialExpiresAt), domain.ActorFrom(ctx), made.Limits,
		orEmpty(made.UsableNames), orNullID(made.LeaseID), made.Managed)
}

// visible is a connection of the caller's project ($1), or one that usable_by opens to the caller ($2). A deleted
// connection is visible in its own project only.
const visible = `(project_id = $1 or status <> 'deleted' and usable_by && $2::text[])`

// names are the ids that stand for the caller in usable_by. A caller who only reads has none.
func names(who domain.Identity) []string {
	if who.MayAct() {
		return []string{who.UserID, who.ProjectID}
	}
	return []string{}
}

// Get reads a connection that the caller may see, with what is used of its quota. Whether the caller may act through it
// is domain.Connection.Usable.
func (c Connections) Get(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.Connection, error) {
	found, err := queryOne[domain.Connection](ctx, c.DB.pool,
		"select "+connectionColumns+" from connections where "+visible+" and id = $3", who.ProjectID, names(who), id)
	if err != nil {
		return found, orNotFound(err, "there is no connection %s", id)
	}
	one := []domain.Connection{found}
	err = c.count(ctx, one)
	return one[0], err
}

// counted are the given connections; n is their place.
const counted = "unnest($1::text[], $2::uuid[]) with ordinality as c (project_id, id, n)"

var (
	usesSQL = "select u.* from " + counted +
		" cross join lateral (" + usedBy("c.project_id", "c.id") + ") u order by c.n"
	leftTrustSQL = `
select (select count(*)::int from trusts_to_revoke t
        where t.project_id = c.project_id and t.connection_id = c.id) as trusts
from ` + counted + ` order by c.n`
)

// count fills in what connections use of their quotas, and of those that have ended how many old trusts Keystone may
// still have. Functions that see open connections only may not read trusts_to_revoke.
func (c Connections) count(ctx context.Context, found []domain.Connection) error {
	projects, ids := make([]string, len(found)), make([]uuid.UUID, len(found))
	for n, connection := range found {
		projects[n], ids[n] = connection.ProjectID, connection.ID
	}
	uses, err := queryAll[domain.Need](ctx, c.DB.pool, usesSQL, projects, ids)
	if err != nil {
		return err
	}
	isEnded := func(connection domain.Connection) bool { return !connection.Status.IsOpen() }
	var left []struct{ Trusts int }
	if slices.ContainsFunc(found, isEnded) {
		left, err = queryAll[struct{ Trusts int }](ctx, c.DB.pool, leftTrustSQL, projects, ids)
		if err != nil {
			return err
		}
	}
	for n := range found {
		found[n].Used = uses[n]
		if isEnded(found[n]) {
			found[n].OldTrusts = left[n].Trusts
		}
	}
	return nil
}

func used(ctx context.Context, db querier, projectID string, id uuid.UUID) (domain.Need, error) {
	return queryOne[domain.Need](ctx, db, usedBy("$1", "$2"), projectID, id)
}

// Ids are version 7: the order of time.
const listConnectionsSQL = `
select ` + connectionColumns + ` from connections
where ` + visible + `
  and case when $3 then status = 'active' and suspended_at is null
                        and (usable_by && $2::text[] or project_id = $1 and user_id = $6 and $1 = any($2))
           else project_id = $1 end
  and case when cardinality($7::text[]) > 0 then ` + shownStatus + ` = any($7::text[]) else status <> 'deleted' end
  and case when lease_id is not null then 'lease' when managed then 'managed' else '' end
      = any(case when cardinality($8::text[]) > 0 then $8::text[] else '{""}' end)
  and id > $4 order by id limit $5`

// List reads a page of connections, the oldest first, as Get does.
func (c Connections) List(
	ctx context.Context, who domain.Identity, q domain.ConnectionQuery,
) ([]domain.Connection, error) {
	found, err := queryAll[domain.Connection](ctx, c.DB.pool, listConnectionsSQL,
		who.ProjectID, names(who), q.Usable, q.Marker, q.Limit, who.UserID, q.Statuses, q.Of)
	if err != nil || len(found) == 0 {
		return found, err
	}
	return found, c.count(ctx, found)
}

// Now is the database's clock.
func (c Connections) Now(ctx context.Context) (time.Time, error) { return c.DB.Now(ctx) }

// admit refuses what the connection does not permit, what does not fit its quota, and specs of new servers that its
// limits do not allow. It locks the connection, so that two cannot both be the last that fits, and records that it is
// used.
func admit(
	ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID, permission domain.Permission,
	more domain.Need, specs ...domain.LaunchSpec,
) error {
	type connectionAt struct {
		domain.Connection

		Now time.Time
	}
	connection, err := queryOne[connectionAt](ctx, tx, "select "+connectionColumns+`, clock_timestamp() as now
from connections where project_id = $1 and id = $2 for no key update`, projectID, id)
	if err != nil {
		return orNotFound(err, "there is no connection %s", id)
	}
	needs := []domain.Permission{permission}
	if slices.ContainsFunc(specs, domain.LaunchSpec.Attaches) {
		needs = append(needs, domain.MayAttach)
	}
	if err := connection.Permits(connection.Now, needs...); err != nil {
		return err
	}
	for _, spec := range specs {
		if err := connection.Limits.CheckSpec(spec); err != nil {
			return err
		}
	}
	// a statement of its own sees what the last holder of the lock has written
	inUse, err := used(ctx, tx, projectID, id)
	if err != nil {
		return err
	}
	if err := connection.Quota.Check(inUse, more); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "update connections set last_used_at = clock_timestamp() where id = $1", id)
	return err
}

// Usable reads a connection that the caller may act through, with the database's time, and records it for the request
// log. It is NotFound for any other connection and a deleted one. For one that has ended automatically it is the error
// of domain.Connection.Permits.
func (c Connections) Usable(
	ctx context.Context, who domain.Identity, id uuid.UUID,
) (found domain.Connection, now time.Time, err error) {
	if found, err = c.Get(ctx, who, id); err != nil {
		return found, now, err
	}
	if !found.Usable(who) || found.Status == domain.ConnectionDeleted {
		return domain.Connection{}, now, noConnection(id)
	}
	domain.RecordConnection(ctx, found)
	if now, err = c.DB.Now(ctx); err != nil {
		return found, now, err
	}
	return found, now, found.Permits(now)
}

// ConnectionKeys lists the keys that connections' secrets are encrypted with.
func (db *DB) ConnectionKeys(ctx context.Context) ([]domain.KeyUse, error) {
	return keyUses(ctx, db, "connections where secret is not null", "secret")
}

// checkShared rejects a lease that its connection does not outlast or permit. The connection stays as it is until the
// lease is stored.
func checkShared(ctx context.Context, tx pgx.Tx, lease domain.Lease, isShared bool) error {
	found, err := queryOne[struct{ Lasts, Permits bool }](ctx, tx, sharedSQL, lease.ProjectID, lease.ConnectionID,
		lease.EndsAt, lease.Permissions())
	switch {
	case err != nil:
		return err
	case !found.Lasts:
		return endsBefore(isShared)
	case !found.Permits:
		return apperr.New(apperr.Conflict, "the connection does not permit what the lease needs any more")
	}
	return nil
}

const sharedSQL = `
select status = 'active' and expires_at >= $3 as lasts, actions @> $4::text[] as permits
from connections where project_id = $1 and id = $2 for share`
