package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Connections are what users have delegated. Their secrets are read by run-connections only (delegation.go).
type Connections struct{ DB *DB }

const connectionColumns = `
id, project_id, domain_id, user_id, name, kind, auth_url, region, delegation_id, acts_as, actions, quota, limits, usable_by, usable_names,
flavors, status, reason, revoked, trust_expires_at, expires_at, idle_timeout, last_used_at, created_at, updated_at, checked_at`

// usedSQL is what runs through a connection: everything that has, or may have, a server.
const usedSQL = `
select count(*)::int, coalesce(sum((spec->>'vcpus')::int), 0)::int, coalesce(sum((spec->>'ram_mb')::int), 0)::int
from instances
where project_id = $1 and connection_id = $2 and state <> 'deleted' and (server_id is not null or problem is null)`

func scanConnection(row pgx.CollectableRow) (c domain.Connection, err error) {
	var idle *time.Duration
	var used, trustEnd, checked *time.Time
	err = row.Scan(&c.ID, &c.ProjectID, &c.DomainID, &c.UserID, &c.Name, &c.Kind, &c.AuthURL, &c.Region, &c.DelegationID, &c.ActsAs,
		&c.Actions, &c.Quota, &c.Limits, &c.UsableBy, &c.UsableNames, &c.Flavors, &c.Status, &c.Reason, &c.Revoked, &trustEnd, &c.ExpiresAt,
		&idle, &used, &c.CreatedAt, &c.UpdatedAt, &checked)
	if idle != nil {
		c.IdleTimeout = *idle
	}
	if used != nil {
		c.LastUsedAt = used.UTC()
	}
	if checked != nil {
		c.CheckedAt = checked.UTC()
	}
	switch {
	case trustEnd != nil:
		c.TrustExpiresAt = trustEnd.UTC()
	case c.Kind == domain.TrustConnection: // it was made before 011
		c.TrustExpiresAt = c.ExpiresAt.Add(domain.TrustSpare).UTC()
	}
	if len(c.UsableNames) == 0 {
		c.UsableNames = nil
	}
	c.ExpiresAt, c.CreatedAt, c.UpdatedAt = c.ExpiresAt.UTC(), c.CreatedAt.UTC(), c.UpdatedAt.UTC()
	return c, err
}

func noConnection(id uuid.UUID) error {
	return apperr.New(apperr.NotFound, "there is no connection %s", id)
}

func oneConnection(rows pgx.Rows, id uuid.UUID) (domain.Connection, error) {
	c, err := pgx.CollectExactlyOneRow(rows, scanConnection)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, noConnection(id)
	}
	return c, classify(err)
}

// connectionEventSQL writes the event of a connection's new status, from rows of connections with previous_status and
// actor. These hold what it needs and not all: functions that serve HTTP may write secrets and not read them.
const connectionEventSQL = `
    insert into events (project_id, subject, seq, type, at, connection_id, data)
    select project_id, id::text, seq, '` + domain.ConnectionEvent + `', updated_at, id,
           jsonb_strip_nulls(jsonb_build_object('connection_id', id, 'status', status, 'previous_status', previous_status, 'reason', nullif(reason, ''),
                                                'actor', actor))
    from`

const (
	// One at a time in a project, so that two cannot both be the last that fits.
	lockConnectionsSQL = `select pg_advisory_xact_lock(hashtextextended('connections/' || $1, 0))`
	connectionFitsSQL  = `select count(*) < $2 from connections where project_id = $1 and status = 'active'`

	insertConnectionSQL = `
with after as (
    insert into connections (id, project_id, domain_id, user_id, name, kind, auth_url, region, delegation_id, secret, acts_as, actions,
                             quota, usable_by, flavors, status, expires_at, idle_timeout, trust_expires_at, seq, revoked, checked_at,
                             next_check_at, limits, usable_names)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 'active', $16, $17, $18, 1, $6 <> 'trust', clock_timestamp(),
            clock_timestamp() + $19::interval * (0.8 + 0.4 * random()), $21, coalesce($22::jsonb, '[]'))
    returning ` + connectionColumns + `, seq, null::text as previous_status, $20::jsonb as actor
), event as (` + connectionEventSQL + ` after)
select ` + connectionColumns + ` from after`
)

// Create stores a connection, active. There are so many at most that a project can have.
func (c Connections) Create(ctx context.Context, made domain.Connection) (stored domain.Connection, err error) {
	err = c.DB.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockConnectionsSQL, made.ProjectID); err != nil {
			return err
		}
		var fits bool
		if err := tx.QueryRow(ctx, connectionFitsSQL, made.ProjectID, domain.MaxConnections).Scan(&fits); err != nil {
			return err
		}
		if !fits {
			return apperr.New(apperr.Conflict, "there are %d connections already: that is as many as a project may have", domain.MaxConnections)
		}
		var idle *time.Duration
		if made.IdleTimeout > 0 {
			idle = &made.IdleTimeout
		}
		var trustEnd *time.Time
		if !made.TrustExpiresAt.IsZero() {
			trustEnd = &made.TrustExpiresAt
		}
		rows, _ := tx.Query(ctx, insertConnectionSQL, made.ID, made.ProjectID, made.DomainID, made.UserID, made.Name, made.Kind, made.AuthURL,
			made.Region, made.DelegationID, made.Secret, made.ActsAs, made.Actions, made.Quota, made.UsableBy, made.Flavors, made.ExpiresAt, idle, trustEnd,
			domain.CheckEvery, domain.ActorIn(ctx), made.Limits, orNullNames(made.UsableNames))
		stored, err = pgx.CollectExactlyOneRow(rows, scanConnection)
		return err
	})
	return stored, err
}

// orNullNames is null for none, which is stored as an empty list.
func orNullNames(names []domain.UsableByName) any {
	if len(names) == 0 {
		return nil
	}
	return names
}

// visible is a connection of the caller's project ($1), or one that the caller may act through by one of his names ($2). A deleted one is
// visible in its own project.
const visible = `(project_id = $1 or status <> 'deleted' and usable_by && $2::text[])`

// names are what the caller may be called in usable_by. Who may only read in a project is not meant by its name.
func names(who domain.Identity) []string {
	if who.MayAct() {
		return []string{who.UserID, who.ProjectID}
	}
	return []string{who.UserID}
}

// Get reads a connection that the caller may see, with what is used of its quota. Whether the caller may act through it is
// domain.Connection.Usable.
func (c Connections) Get(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.Connection, error) {
	rows, _ := c.DB.pool.Query(ctx, "select "+connectionColumns+" from connections where "+visible+" and id = $3", who.ProjectID, names(who), id)
	found, err := oneConnection(rows, id)
	if err != nil {
		return found, err
	}
	found.Used, err = used(ctx, c.DB.pool, found.ProjectID, id)
	return found, classify(err)
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func used(ctx context.Context, db querier, projectID string, id uuid.UUID) (n domain.Need, err error) {
	err = db.QueryRow(ctx, usedSQL, projectID, id).Scan(&n.Instances, &n.VCPUs, &n.RAMMB)
	return n, err
}

// List reads a page of connections, the oldest first. Used is filled in.
func (c Connections) List(ctx context.Context, who domain.Identity, q domain.ConnectionQuery) ([]domain.Connection, error) {
	rows, _ := c.DB.pool.Query(ctx, "select "+connectionColumns+" from connections where "+visible+`
  and case when $3 then status = 'active' and (usable_by && $2::text[] or project_id = $1 and user_id = $6 and $1 = any($2)) else project_id = $1 end
  and case when cardinality($7::text[]) > 0 then status = any($7::text[]) else status <> 'deleted' end
  and id > $4 order by id limit $5`, who.ProjectID, names(who), q.Usable, q.Marker, q.Limit, who.UserID, q.Statuses) // ids are version 7: the order of time
	found, err := pgx.CollectRows(rows, scanConnection)
	if err != nil {
		return nil, classify(err)
	}
	for n := range found {
		if found[n].Used, err = used(ctx, c.DB.pool, found[n].ProjectID, found[n].ID); err != nil {
			return nil, classify(err)
		}
	}
	return found, nil
}

// Now is the database's clock.
func (c Connections) Now(ctx context.Context) (time.Time, error) { return c.DB.Now(ctx) }

// endConnectionSQL ends a connection and wipes its secret; an end of a higher rank follows one of a lower, and never itself.
const endConnectionSQL = `
with before as (
    select id, status from connections
    where project_id = $1 and id = $2 and status <> 'deleted' and (status = 'active' or $3 = 'deleted')
    for no key update
), after as (
    update connections c
    set status = $3, reason = $4, secret = null, revoked = c.revoked or $5, seq = c.seq + 1, updated_at = clock_timestamp()
    from before b where c.id = b.id
    returning c.project_id, c.id, c.seq, c.updated_at, c.status, c.reason, b.status as previous_status, $6::jsonb as actor
), event as (` + connectionEventSQL + ` after)
select count(*) from after`

// End ends a connection: its secret is wiped, and nobody acts through it any more. revoked says that nothing of it is left in
// Keystone that could be taken back. ended is false when it had ended so already.
func (c Connections) End(
	ctx context.Context, projectID string, id uuid.UUID, status domain.ConnectionStatus, reason string, revoked bool,
) (ended bool, err error) {
	var n int
	err = again(func() error {
		return c.DB.pool.QueryRow(ctx, endConnectionSQL, projectID, id, status, reason, revoked, domain.ActorIn(ctx)).Scan(&n)
	})
	return n == 1, classify(err)
}

// admit refuses what the connection does not permit, what does not fit its quota besides what runs already, and specs of new servers that
// its limits do not allow. It locks the connection, so that two cannot both be the last that fits, and notes that it is used.
func admit(
	ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID, permission domain.Permission, more domain.Need, specs ...domain.LaunchSpec,
) error {
	rows, _ := tx.Query(ctx, "select "+connectionColumns+", clock_timestamp() from connections where project_id = $1 and id = $2 for no key update", projectID, id)
	var now time.Time
	connection, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (domain.Connection, error) {
		return scanConnectionAt(row, &now)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return noConnection(id)
	}
	if err != nil {
		return err
	}
	if err := connection.Permits(now, permission); err != nil {
		return err
	}
	for _, spec := range specs {
		if err := connection.Limits.CheckSpec(spec); err != nil {
			return err
		}
	}
	inUse, err := used(ctx, tx, projectID, id) // a statement of its own: it sees what the last holder of the lock has written
	if err != nil {
		return err
	}
	if err := connection.Quota.Check(inUse, more); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "update connections set last_used_at = clock_timestamp() where id = $1", id)
	return err
}

// scanConnectionAt scans a connection with the moment at which it was read behind it.
func scanConnectionAt(row pgx.CollectableRow, now *time.Time) (domain.Connection, error) {
	return scanConnection(withMore{row, []any{now}})
}

// withMore scans columns behind those that a scan function knows of.
type withMore struct {
	pgx.CollectableRow
	more []any
}

// Scan implements pgx.CollectableRow.
func (w withMore) Scan(dest ...any) error { return w.CollectableRow.Scan(append(dest, w.more...)...) }

// Usable reads a connection that the caller may act through, notes that for the request log, and says what time it is.
// NotFound for any other and a deleted one; for one that has ended by itself the error of domain.Connection.Permits:
// nothing is done through it any more, and nothing is seen.
func (c Connections) Usable(ctx context.Context, who domain.Identity, id uuid.UUID) (found domain.Connection, now time.Time, err error) {
	if found, err = c.Get(ctx, who, id); err != nil {
		return found, now, err
	}
	if !found.Usable(who) || found.Status == domain.ConnectionDeleted {
		return domain.Connection{}, now, noConnection(id)
	}
	domain.ActThrough(ctx, found)
	if now, err = c.DB.Now(ctx); err != nil {
		return found, now, err
	}
	return found, now, found.Permits(now)
}
