package postgres

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// replacedTrustFor is how long a replaced trust stays in Keystone: calls that began with it continue in Nova and
// Neutron, and its tokens end with it.
const replacedTrustFor = 2 * time.Minute

const (
	// The row is changed only while its seq is the one that the caller has read ($3), and it has not ended.
	changeConnectionSQL = changedBy + `
    set ` + changedTo + changedAnd

	// changeSecretSQL also replaces the secret, which functions that serve HTTP may not read.
	changeSecretSQL = changedBy + `
    set secret = $11, ` + changedTo + changedAnd

	changedBy = `
with before as (
    select id as old_id, kind as old_kind, user_id as old_user, delegation_id as old_trust,
           trust_expires_at as old_end,
           delegation_id <> $10 or $11::bytea is not null as is_new
    from connections
    where project_id = $1 and id = $2 and seq = $3 and ` + isShown + ` and status = 'active'
      and ` + endsAt + ` > clock_timestamp()
    for no key update
), after as (
    update connections c`

	changedTo = `name = $4, expires_at = $5, idle_timeout = $6, quota = $7, limits = $21, usable_by = $8,
    usable_names = $22,
        actions = $9, delegation_id = $10, acts_as = $12, flavors = coalesce($13, c.flavors), trust_expires_at = $14,
        credential_expires_at = $15, generation = c.generation + b.is_new::int,
        checked_at = case when b.is_new then clock_timestamp() else c.checked_at end,
        next_check_at = case when b.is_new then clock_timestamp() else c.next_check_at end,
        seq = c.seq + 1, updated_at = clock_timestamp()
    from before b where c.id = b.old_id`

	changedAnd = `
    returning ` + connectionColumns + `
), replaced as (
    insert into trusts_to_revoke (id, project_id, connection_id, user_id, trust_id, trust_expires_at, not_before)
    select $20::uuid, $1, old_id, old_user, old_trust, old_end, clock_timestamp() + $19::interval
    from before where old_kind = 'trust' and is_new
), event as (
    insert into events (project_id, subject, seq, type, at, connection_id, data)
    select project_id, id::text, seq, '` + domain.ChangeEvent + `', updated_at, id,
           jsonb_strip_nulls(jsonb_build_object('connection_id', id, 'fields', $16::text[], 'actor', $17::jsonb,
               'expires_at',
                                                to_char(expires_at at time zone 'utc',
                                                    'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
    from after where $18::boolean
)
select ` + connectionColumns + ` from after`

	suspendSQL = `
with before as (
    select id, ` + shownStatus + ` as status from connections
    where project_id = $1 and id = $2 and ` + isShown + ` and status = 'active'
      and (suspended_at is null) = $3::boolean
      and ` + endsAt + ` > clock_timestamp()
    for no key update
), after as (
    update connections c
    set suspended_at = case when $3 then clock_timestamp() end, resumed_at = case when $3 then c.resumed_at
        else clock_timestamp() end,
        seq = c.seq + 1, updated_at = clock_timestamp()
    from before b where c.id = b.id
    returning c.project_id, c.id, c.seq, c.updated_at, case when $3 then 'suspended' else 'active' end as status,
        c.reason,
              b.status as previous_status, $4::jsonb as actor
), event as (` + connectionEventSQL + ` after)
select count(*) from after`
)

// Change replaces a connection, and schedules the revocation of a trust that it no longer has. It is domain.ErrChanged
// when someone has changed the connection since it was read, and a Conflict when it has ended, or an open lease that
// names it could not be handled with it any more.
func (c Connections) Change(
	ctx context.Context, before, after domain.Connection,
) (stored domain.Connection, err error) {
	fields, change := before.Changed(after), changeConnectionSQL
	if after.Secret != nil {
		change = changeSecretSQL
	}
	stored, err = changeValue(ctx, c.DB, func(tx pgx.Tx) (domain.Connection, error) {
		if after.TrustIntent != uuid.Nil {
			if err := keepTrust(ctx, tx, after.ProjectID, after.TrustIntent); err != nil {
				return after, err
			}
		}
		breaks := func(l domain.Lease) bool { return l.HandledBy(before) && !l.HandledBy(after) }
		if err := checkSharing(ctx, tx, after.ProjectID, after.ID, breaks); err != nil {
			return after, err
		}
		return queryOne[domain.Connection](ctx, tx, change, after.ProjectID, after.ID, before.Seq,
			after.Name, after.ExpiresAt, orNullDuration(after.IdleTimeout), after.Quota, after.UsableBy,
			after.Actions, after.DelegationID, after.Secret, after.ActsAs, orNullJSON(after.Flavors),
			orNull(after.TrustExpiresAt), orNull(after.CredentialExpiresAt), fields, domain.ActorFrom(ctx),
			len(fields) > 0, replacedTrustFor, uuid.New(), after.Limits, orEmpty(after.UsableNames))
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return stored, c.whyUnchanged(ctx, after.ProjectID, after.ID)
	}
	if err != nil {
		return stored, classify(err)
	}
	stored.Used, err = used(ctx, c.DB.pool, stored.ProjectID, stored.ID)
	return stored, err
}

// whyUnchanged says why a connection could not be changed.
func (c Connections) whyUnchanged(ctx context.Context, projectID string, id uuid.UUID) error {
	isOpen, err := queryValue[bool](ctx, c.DB.pool,
		"select status = 'active' and "+endsAt+" > clock_timestamp() from connections "+
			"where project_id = $1 and id = $2 and "+isShown, projectID, id)
	switch {
	case err != nil:
		return orNotFound(err, "there is no connection %s", id)
	case !isOpen:
		return apperr.New(apperr.Conflict, "the connection has ended, and cannot be changed any more: make a new one")
	}
	return domain.ErrChanged
}

// Suspend suspends a connection, or resumes it with false. changed is false when it was suspended, or open, already.
func (c Connections) Suspend(
	ctx context.Context, projectID string, id uuid.UUID, suspend bool,
) (changed bool, err error) {
	n, err := write(ctx, c.DB, queryValue[int], suspendSQL, projectID, id, suspend, domain.ActorFrom(ctx))
	if err != nil || n == 1 {
		return n == 1, err
	}
	if err = c.whyUnchanged(ctx, projectID, id); errors.Is(err, domain.ErrChanged) { // it has that status already
		err = nil
	}
	return false, err
}

// endConnectionSQL ends a connection and wipes its secret. One that has ended automatically can still be deleted. With
// $6 it ends only a delegation of that generation, and with $7 only one that has expired.
const endConnectionSQL = `
with before as (
    select id, ` + shownStatus + ` as status from connections
    where project_id = $1 and id = $2 and status <> 'deleted' and (status = 'active' or $3 = 'deleted')
      and ($6::integer = 0 or generation = $6) and (not $7::boolean or ` + endsAt + ` <= clock_timestamp())
    for no key update
), after as (
    update connections c
    set status = $3, reason = $4, secret = null, suspended_at = null, revoked = c.revoked or $5, seq = c.seq + 1,
        updated_at = clock_timestamp()
    from before b where c.id = b.id
    returning c.project_id, c.id, c.seq, c.updated_at, c.status, c.reason, b.status as previous_status,
              $8::jsonb as actor, c.lease_id, c.managed
), event as (` + connectionEventSQL + ` after where ` + isShown + `)
select count(*) from after`

// End ends a connection: its secret is wiped, and no one can act through it. revoked reports whether Keystone has
// nothing of it left to revoke. ended is false when it had ended so already.
func (c Connections) End(
	ctx context.Context, projectID string, id uuid.UUID, status domain.ConnectionStatus, reason string, revoked bool,
) (ended bool, err error) {
	return c.end(ctx, projectID, id, status, reason, revoked, 0, false)
}

// Lose ends a connection whose delegation Keystone rejects, unless it has got another delegation since.
func (c Connections) Lose(
	ctx context.Context, lost domain.Connection, reason string, revoked bool,
) (ended bool, err error) {
	return c.end(ctx, lost.ProjectID, lost.ID, domain.ConnectionLost, reason, revoked, lost.Generation, false)
}

// Expire ends a connection that has expired, unless it was prolonged since.
func (c Connections) Expire(
	ctx context.Context, over domain.Connection, reason string, revoked bool,
) (ended bool, err error) {
	return c.end(ctx, over.ProjectID, over.ID, domain.ConnectionExpired, reason, revoked, 0, true)
}

func (c Connections) end(
	ctx context.Context, projectID string, id uuid.UUID, status domain.ConnectionStatus, reason string, revoked bool,
	generation int, onlyOver bool,
) (ended bool, err error) {
	n, err := write(ctx, c.DB, queryValue[int], endConnectionSQL,
		projectID, id, status, reason, revoked, generation, onlyOver, domain.ActorFrom(ctx))
	return n == 1, err
}

const (
	// A lease that is stored locks its connection, too (checkShared), and is then in the snapshot of sharingSQL.
	lockConnectionSQL = `
select status = 'active' from connections where project_id = $1 and id = $2 for no key update`

	sharingSQL = `
select id, ends_at, on_end from leases
where project_id = $1 and connection_id = $2 and shares_connection and status not in ('ended', 'cancelled') order by id`

	shownLeases = 10 // in an error
)

// checkSharing rejects what is about to be done to an active connection if it breaks an open lease that names it.
func checkSharing(
	ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID, breaks func(domain.Lease) bool,
) error {
	isActive, err := queryValue[bool](ctx, tx, lockConnectionSQL, projectID, id)
	if err != nil || !isActive {
		return orNotFound(err, "there is no connection %s", id)
	}
	leases, err := queryAll[domain.Lease](ctx, tx, sharingSQL, projectID, id)
	if err != nil {
		return err
	}
	var broken []string
	for _, lease := range leases {
		if breaks(lease) {
			broken = append(broken, lease.ID.String())
		}
	}
	if len(broken) == 0 {
		return nil
	}
	return apperr.New(apperr.Conflict, "leases need the connection until they end: change or end them first: %s",
		strings.Join(broken[:min(len(broken), shownLeases)], ", "))
}

// Delete ends a connection at the request of its project. deleted is false when it was deleted already. It is a
// Conflict while an open lease names the connection.
func (c Connections) Delete(ctx context.Context, projectID string, id uuid.UUID) (deleted bool, err error) {
	return changeValue(ctx, c.DB, func(tx pgx.Tx) (bool, error) {
		if err := checkSharing(ctx, tx, projectID, id, func(domain.Lease) bool { return true }); err != nil {
			return false, err
		}
		n, err := queryValue[int](ctx, tx, endConnectionSQL, projectID, id, domain.ConnectionDeleted,
			"it was deleted", false, 0, false, domain.ActorFrom(ctx))
		return n == 1, err
	})
}
