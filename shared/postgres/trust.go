package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// A trust is announced before Keystone makes it, so that one that no connection gets is revoked in any case. Trusts
// that connections no longer have wait in trusts_to_revoke; the trust of an ended connection waits in the connection's
// own row.

// announcedFor is how long an announced trust may take to be made and stored: longer than any request.
const announcedFor = 5 * time.Minute

const (
	// Keystone lists the ends of trusts in whole seconds.
	trustEndTakenSQL = `
select exists (select from trusts_to_revoke where project_id = $1 and user_id = $2 and id <> $3
               and date_trunc('second', trust_expires_at) = date_trunc('second', $4::timestamptz))
    or exists (select from connections where project_id = $1 and user_id = $2 and kind = 'trust' and not revoked
               and date_trunc('second', trust_expires_at) = date_trunc('second', $4::timestamptz))`

	announceTrustSQL = `
insert into trusts_to_revoke as t (id, project_id, connection_id, user_id, trust_expires_at, not_before)
values ($1, $2, $3, $4, $5, clock_timestamp() + $6::interval)
on conflict (id) do update set trust_expires_at = excluded.trust_expires_at, not_before = excluded.not_before
where t.project_id = excluded.project_id and t.user_id = excluded.user_id and t.taken_at is null`

	dropTrustSQL = `
insert into trusts_to_revoke as t (id, project_id, connection_id, user_id, trust_id, trust_expires_at, not_before)
values ($1, $2, $3, $4, $5, $6, clock_timestamp())
on conflict (id) do update set trust_id = excluded.trust_id, not_before = excluded.not_before
where t.project_id = excluded.project_id`
)

// AnnounceTrust records that a trust is about to be requested from Keystone: if no one stores it, it is revoked. A
// trust that is announced twice gets another end, because Keystone made none with the first. isFree is false when
// another trust of the user ends in the same second: its end identifies it.
func (c Connections) AnnounceTrust(ctx context.Context, t domain.OldTrust) (isFree bool, err error) {
	return changeValue(ctx, c.DB, func(tx pgx.Tx) (bool, error) {
		// One announcement of a user at a time: two must not get the same end.
		if err := lockName(ctx, tx, "trusts", t.ProjectID, t.UserID); err != nil {
			return false, err
		}
		isTaken, err := queryValue[bool](ctx, tx, trustEndTakenSQL, t.ProjectID, t.UserID, t.ID, t.ExpiresAt)
		if err != nil || isTaken {
			return false, err
		}
		n, err := exec(ctx, tx, announceTrustSQL, t.ID, t.ProjectID, t.ConnectionID, t.UserID, t.ExpiresAt,
			announcedFor)
		if err == nil && n == 0 {
			err = tookTooLong()
		}
		return err == nil, err
	})
}

// ForgetTrust deletes an announced trust that Keystone does not have.
func (c Connections) ForgetTrust(ctx context.Context, projectID string, intent uuid.UUID) error {
	_, err := exec(ctx, c.DB.pool, "delete from trusts_to_revoke where project_id = $1 and id = $2", projectID, intent)
	return err
}

// DropTrust makes the revocation of a trust due now that Keystone has made and no connection has stored.
func (c Connections) DropTrust(ctx context.Context, t domain.OldTrust) error {
	_, err := exec(ctx, c.DB.pool, dropTrustSQL, t.ID, t.ProjectID, t.ConnectionID, t.UserID, t.TrustID, t.ExpiresAt)
	return err
}

func tookTooLong() error {
	return apperr.New(apperr.Timeout, "making the trust took too long: send the request again")
}

// keepTrust ends the announcement of a trust whose connection is stored in the same transaction.
func keepTrust(ctx context.Context, tx pgx.Tx, projectID string, intent uuid.UUID) error {
	n, err := exec(ctx, tx, "delete from trusts_to_revoke where project_id = $1 and id = $2 and taken_at is null",
		projectID, intent)
	if err == nil && n == 0 {
		return tookTooLong()
	}
	return err
}

// oldTrustDueAt is the condition that an old trust is due at a moment. One of a connection that has ended is due
// immediately, but an announced trust may yet be made.
func oldTrustDueAt(moment string) string {
	return `(t.not_before <= ` + moment + `
    or t.failures = 0 and t.trust_id is not null
       and not exists (select from connections c where c.project_id = t.project_id and c.id = t.connection_id
           and c.status = 'active'))`
}

var oldTrustsSQL = `
select t.id, t.project_id, t.connection_id, t.user_id, coalesce(t.trust_id, '') as trust_id,
    t.trust_expires_at as expires_at
from trusts_to_revoke t
where ` + oldTrustDueAt("now()") + ` order by t.not_before limit $1`

const (
	// From then on no connection can be stored with the trust.
	takeTrustSQL = `
update trusts_to_revoke set taken_at = coalesce(taken_at, clock_timestamp())
where project_id = $1 and id = $2
returning not exists (select from connections c where c.kind = 'trust' and c.delegation_id = $3
    and c.status = 'active')`

	// The connection's row has the number of the event; it may be gone. The event has no connection_id: only callbacks
	// of the project get it.
	oldTrustEventSQL = `
), connection as (
    update connections c set seq = c.seq + 1, updated_at = clock_timestamp() from notify n
    where n.notify and c.project_id = $1 and c.id = n.connection_id
    returning c.project_id, c.id, c.seq, c.updated_at, n.trust_end
), event as (
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, id::text, seq, '` + domain.RevocationEvent + `', updated_at, ` + revocationData + `
    from connection
)
select coalesce(bool_or(notify), false) from notify`

	oldTrustGoneSQL = `
with notify as (
    delete from trusts_to_revoke where project_id = $1 and id = $2
    returning connection_id, null::timestamptz as trust_end, pending_since is not null as notify` + oldTrustEventSQL

	oldTrustFailedSQL = `
with before as (
    select id, pending_since is null as notify from trusts_to_revoke
    where project_id = $1 and id = $2 and (failures = 0 or not_before <= clock_timestamp())
    for no key update
), notify as (
    update trusts_to_revoke t
    set failures = t.failures + 1, not_before = clock_timestamp() + least($5::interval * power(2,
        least(t.failures, 20)), $6::interval),
        pending_since = coalesce(t.pending_since, clock_timestamp())
    from before b where t.id = b.id
    returning t.connection_id, t.trust_expires_at as trust_end, b.notify` + oldTrustEventSQL
)

// OldTrusts lists trusts that no connection has and whose revocation is due.
func (d Delegations) OldTrusts(ctx context.Context, limit int) ([]domain.OldTrust, error) {
	return queryAll[domain.OldTrust](ctx, d.DB.pool, oldTrustsSQL, limit)
}

// AdoptTrust keeps connections from being stored with the trust from now on. isOurs is false when its row is deleted,
// or a connection has it.
func (d Delegations) AdoptTrust(ctx context.Context, t domain.OldTrust) (isOurs bool, err error) {
	isOurs, err = queryValue[bool](ctx, d.DB.pool, takeTrustSQL, t.ProjectID, t.ID, t.TrustID)
	return isOurs, ifNone(err, nil)
}

// MarkTrustGone deletes the row of a trust that Keystone no longer has. notified reports whether an event was written,
// as of MarkRevoked.
func (d Delegations) MarkTrustGone(ctx context.Context, t domain.OldTrust) (notified bool, err error) {
	return write(ctx, d.DB, queryValue[bool], oldTrustGoneSQL, t.ProjectID, t.ID, domain.RevocationDone, "")
}

// MarkTrustPending records that a trust could not be deleted, and pauses, as MarkRevocationPending does.
func (d Delegations) MarkTrustPending(
	ctx context.Context, t domain.OldTrust, reason string, first, longest time.Duration,
) (notified bool, err error) {
	return write(ctx, d.DB, queryValue[bool], oldTrustFailedSQL, t.ProjectID, t.ID, domain.RevocationPending, reason,
		first, longest)
}

const (
	// revocationData is the data of a revocation's event, from a row with trust_end: $3 is its status, $4 the reason.
	revocationData = `jsonb_strip_nulls(jsonb_build_object(
        'connection_id', id, 'status', $3::text, 'reason', nullif($4::text, ''),
        'trust_expires_at', to_char(trust_end at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))`

	// revocationEventSQL writes the event of a revocation from rows of connections in after, where notify is set.
	revocationEventSQL = `
    insert into events (project_id, subject, seq, type, at, connection_id, data)
    select project_id, id::text, seq, '` + domain.RevocationEvent + `', updated_at, id, ` + revocationData + `
    from after where notify`

	revokedSQL = `
with before as (
    select id, revocation_pending_since is not null as notify from connections
    where project_id = $1 and id = $2 and delegation_id = $5 and not revoked
    for no key update
), after as (
    update connections c
    set revoked = true, seq = c.seq + b.notify::int, updated_at = clock_timestamp()
    from before b where c.id = b.id
    returning c.project_id, c.id, c.seq, c.updated_at, null::timestamptz as trust_end, b.notify
), event as (` + revocationEventSQL + `)
select coalesce(bool_or(notify), false) from after`

	revocationFailedSQL = `
with before as (
    select id, revocation_pending_since is null as notify from connections
    where project_id = $1 and id = $2 and status <> 'active' and not revoked
      and coalesce(not_before, '-infinity') <= clock_timestamp()
    for no key update
), after as (
    update connections c
    set failures = c.failures + 1, not_before = clock_timestamp() + least($5::interval * power(2,
        least(c.failures, 20)), $6::interval),
        revocation_pending_since = coalesce(c.revocation_pending_since, clock_timestamp()), seq = c.seq + b.notify::int,
        updated_at = case when b.notify then clock_timestamp() else c.updated_at end
    from before b where c.id = b.id
    returning c.project_id, c.id, c.seq, c.updated_at, b.notify,
              c.trust_expires_at as trust_end
), event as (` + revocationEventSQL + `)
select notify from after`
)

// MarkRevoked records that Keystone no longer has the connection's trust. notified reports whether an event was
// written: it is, if an earlier event said that the revocation is pending.
func (d Delegations) MarkRevoked(ctx context.Context, c domain.Connection) (notified bool, err error) {
	return write(ctx, d.DB, queryValue[bool], revokedSQL, c.ProjectID, c.ID, domain.RevocationDone, "", c.DelegationID)
}

// MarkRevocationPending records that the trust of an ended connection could not be deleted, and pauses: for first, then
// twice as long each time, up to longest. Failures at the same time count once. notified reports whether this was the
// first failure, which an event reports.
func (d Delegations) MarkRevocationPending(
	ctx context.Context, c domain.Connection, reason string, first, longest time.Duration,
) (notified bool, err error) {
	notified, err = write(ctx, d.DB, queryValue[bool], revocationFailedSQL,
		c.ProjectID, c.ID, domain.RevocationPending, reason, first, longest)
	return notified, ifNone(err, nil) // none: another replica was faster, or the row is deleted
}

// PendingRevocations counts the trusts that could not be deleted, and that Keystone may still have.
func (d Delegations) PendingRevocations(ctx context.Context) (int64, error) {
	return queryValue[int64](ctx, d.DB.pool, `
select (select count(*) from connections where not revoked and revocation_pending_since is not null)
     + (select count(*) from trusts_to_revoke where pending_since is not null)`)
}
