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

// announcedFor is for how long a trust that was announced may be made and stored: longer than any request takes.
const announcedFor = 5 * time.Minute

const (
	// One at a time of a user, so that two cannot both find an end free.
	lockTrustsSQL = `select pg_advisory_xact_lock(hashtextextended('trusts/' || $1 || '/' || $2, 0))`

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

// AnnounceTrust writes down that a trust is about to be made, before Keystone is asked for it: when nobody stores it, it is taken back. One
// that is announced again has another end: of the one before Keystone has made no trust. isFree is false when another trust of the user ends in
// the same second: by that it is found.
func (c Connections) AnnounceTrust(ctx context.Context, t domain.OldTrust) (isFree bool, err error) {
	err = c.DB.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockTrustsSQL, t.ProjectID, t.UserID); err != nil {
			return err
		}
		var isTaken bool
		if err := tx.QueryRow(ctx, trustEndTakenSQL, t.ProjectID, t.UserID, t.ID, t.ExpiresAt).Scan(&isTaken); err != nil || isTaken {
			return err
		}
		tag, err := tx.Exec(ctx, announceTrustSQL, t.ID, t.ProjectID, t.ConnectionID, t.UserID, t.ExpiresAt, announcedFor)
		if err == nil && tag.RowsAffected() == 0 {
			return tookTooLong()
		}
		isFree = true
		return err
	})
	return isFree && err == nil, classify(err)
}

// ForgetTrust takes a trust that was announced off the list: Keystone does not have it.
func (c Connections) ForgetTrust(ctx context.Context, projectID string, intent uuid.UUID) error {
	_, err := c.DB.pool.Exec(ctx, "delete from trusts_to_revoke where project_id = $1 and id = $2", projectID, intent)
	return classify(err)
}

// DropTrust has a trust be taken back now that was announced and made and is not stored, also when its announcement is over.
func (c Connections) DropTrust(ctx context.Context, t domain.OldTrust) error {
	_, err := c.DB.pool.Exec(ctx, dropTrustSQL, t.ID, t.ProjectID, t.ConnectionID, t.UserID, t.TrustID, t.ExpiresAt)
	return classify(err)
}

func tookTooLong() error {
	return apperr.New(apperr.Timeout, "making the trust took too long: send the request again")
}

// keepTrust takes a trust off the list that its connection is stored with.
func keepTrust(ctx context.Context, tx pgx.Tx, projectID string, intent uuid.UUID) error {
	tag, err := tx.Exec(ctx, "delete from trusts_to_revoke where project_id = $1 and id = $2 and taken_at is null", projectID, intent)
	if err == nil && tag.RowsAffected() == 0 {
		return tookTooLong()
	}
	return err
}

// oldTrusts counts what of a connection is still to be taken back besides its trust.
func oldTrusts(ctx context.Context, db querier, projectID string, connection uuid.UUID) (n int, err error) {
	err = db.QueryRow(ctx, "select count(*)::int from trusts_to_revoke where project_id = $1 and connection_id = $2", projectID, connection).Scan(&n)
	return n, err
}

const (
	// What belongs to a connection that has ended is due at once, but for what is announced: that may yet be made.
	oldTrustDue = `(t.not_before <= clock_timestamp()
    or t.failures = 0 and t.trust_id is not null
       and not exists (select from connections c where c.project_id = t.project_id and c.id = t.connection_id and c.status = 'active'))`

	oldTrustsSQL = `
select t.id, t.project_id, t.connection_id, t.user_id, coalesce(t.trust_id, ''), t.trust_expires_at from trusts_to_revoke t
where ` + oldTrustDue + ` order by t.not_before limit $1`

	// Nobody can store it from then on. One that somebody has stored is none.
	takeTrustSQL = `
update trusts_to_revoke set taken_at = coalesce(taken_at, clock_timestamp())
where project_id = $1 and id = $2
returning not exists (select from connections c where c.kind = 'trust' and c.delegation_id = $3 and c.status = 'active')`

	// The connection's own row has the number of the event; it may be gone.
	oldTrustEventSQL = `
), connection as (
    update connections c set seq = c.seq + 1, updated_at = clock_timestamp() from notify n
    where n.notify and c.project_id = $1 and c.id = n.connection_id
    returning c.project_id, c.id, c.seq, c.updated_at, n.trust_end
), event as (
    insert into events (project_id, subject, seq, type, at, data) -- it is for callbacks of the project only
    select project_id, id::text, seq, '` + domain.RevocationEvent + `', updated_at,
           jsonb_strip_nulls(jsonb_build_object('connection_id', id, 'status', $3::text, 'reason', nullif($4::text, ''), 'trust_expires_at',
                                                to_char(trust_end at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
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
    set failures = t.failures + 1, not_before = clock_timestamp() + least($5::interval * power(2, least(t.failures, 20)), $6::interval),
        pending_since = coalesce(t.pending_since, clock_timestamp())
    from before b where t.id = b.id
    returning t.connection_id, t.trust_expires_at as trust_end, b.notify` + oldTrustEventSQL
)

// OldTrusts lists trusts that no connection has and that are to be taken back now.
func (d Delegations) OldTrusts(ctx context.Context, limit int) ([]domain.OldTrust, error) {
	rows, _ := d.DB.pool.Query(ctx, oldTrustsSQL, limit)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t domain.OldTrust, err error) {
		err = row.Scan(&t.ID, &t.ProjectID, &t.ConnectionID, &t.UserID, &t.TrustID, &t.ExpiresAt)
		t.ExpiresAt = t.ExpiresAt.UTC()
		return t, err
	})
	return found, classify(err)
}

// TakeTrust makes sure that no connection is stored with the trust from now on. isOurs is false when the list does not have it any more, or a
// connection has it.
func (d Delegations) TakeTrust(ctx context.Context, t domain.OldTrust) (isOurs bool, err error) {
	err = d.DB.pool.QueryRow(ctx, takeTrustSQL, t.ProjectID, t.ID, t.TrustID).Scan(&isOurs)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return isOurs, classify(err)
}

// MarkTrustGone takes a trust off the list: Keystone has it no longer. notified says that an event was written, as of MarkRevoked.
func (d Delegations) MarkTrustGone(ctx context.Context, t domain.OldTrust) (notified bool, err error) {
	err = again(func() error {
		return d.DB.pool.QueryRow(ctx, oldTrustGoneSQL, t.ProjectID, t.ID, domain.RevocationDone, "").Scan(&notified)
	})
	return notified, classify(err)
}

// MarkTrustPending records that a trust could not be deleted, and leaves it alone for a pause, as MarkRevocationPending does.
func (d Delegations) MarkTrustPending(ctx context.Context, t domain.OldTrust, reason string, first, longest time.Duration) (notified bool, err error) {
	err = again(func() error {
		return d.DB.pool.QueryRow(ctx, oldTrustFailedSQL, t.ProjectID, t.ID, domain.RevocationPending, reason, first, longest).Scan(&notified)
	})
	return notified, classify(err)
}
