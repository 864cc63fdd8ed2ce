package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// revocationEventSQL writes the event of a revocation ($3 is its status, $4 the reason) from rows of connections in after, where notify
// says so.
const revocationEventSQL = `
    insert into events (project_id, subject, seq, type, at, connection_id, data)
    select project_id, id::text, seq, '` + domain.RevocationEvent + `', updated_at, id,
           jsonb_strip_nulls(jsonb_build_object('connection_id', id, 'status', $3::text, 'reason', nullif($4::text, ''), 'trust_expires_at',
                                                to_char(trust_end at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
    from after where notify`

const revokedSQL = `
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

// MarkRevoked records that Keystone has the connection's trust no longer. notified says that an event was written: it is, if there was one that
// the revocation is pending.
func (d Delegations) MarkRevoked(ctx context.Context, c domain.Connection) (notified bool, err error) {
	err = again(func() error {
		return d.DB.pool.QueryRow(ctx, revokedSQL, c.ProjectID, c.ID, domain.RevocationDone, "", c.DelegationID).Scan(&notified)
	})
	return notified, classify(err)
}

const revocationFailedSQL = `
with before as (
    select id, revocation_pending_since is null as notify from connections
    where project_id = $1 and id = $2 and status <> 'active' and not revoked and coalesce(not_before, '-infinity') <= clock_timestamp()
    for no key update
), after as (
    update connections c
    set failures = c.failures + 1, not_before = clock_timestamp() + least($5::interval * power(2, least(c.failures, 20)), $6::interval),
        revocation_pending_since = coalesce(c.revocation_pending_since, clock_timestamp()), seq = c.seq + b.notify::int,
        updated_at = case when b.notify then clock_timestamp() else c.updated_at end
    from before b where c.id = b.id
    returning c.project_id, c.id, c.seq, c.updated_at, coalesce(c.trust_expires_at, c.expires_at + interval '10 minutes') as trust_end, b.notify
), event as (` + revocationEventSQL + `)
select notify from after`

// MarkRevocationPending records that the trust of a connection that has ended could not be deleted, and leaves it alone for a pause: first, then
// twice as long each time, up to longest. Of several replicas that try at once the first counts. notified says that this was the first
// failure, of which an event was written.
func (d Delegations) MarkRevocationPending(ctx context.Context, c domain.Connection, reason string, first, longest time.Duration) (notified bool, err error) {
	err = again(func() error {
		return d.DB.pool.QueryRow(ctx, revocationFailedSQL, c.ProjectID, c.ID, domain.RevocationPending, reason, first, longest).Scan(&notified)
	})
	if errors.Is(err, pgx.ErrNoRows) { // another replica was faster, or it is gone
		return false, nil
	}
	return notified, classify(err)
}

// PendingRevocations counts the trusts that Keystone did not let us delete, and may still have.
func (d Delegations) PendingRevocations(ctx context.Context) (n int64, err error) {
	err = d.DB.pool.QueryRow(ctx, `
select (select count(*) from connections where not revoked and revocation_pending_since is not null)
     + (select count(*) from trusts_to_revoke where pending_since is not null)`).Scan(&n)
	return n, classify(err)
}
