package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TrustIntents are trusts that are about to be made. Each is written before Keystone is asked, so that one whose maker dies is found.
type TrustIntents struct{ DB *DB }

const (
	// One at a time of a user, so that two cannot both find an end free.
	lockTrustsSQL = `select pg_advisory_xact_lock(hashtextextended('trusts/' || $1 || '/' || $2, 0))`

	// Keystone lists the ends of trusts in whole seconds.
	trustEndTakenSQL = `
select exists (select from trust_intents where project_id = $1 and user_id = $2 and id <> $3 and done_at is null
               and date_trunc('second', ends_at) = date_trunc('second', $4::timestamptz))
    or exists (select from connections where project_id = $1 and user_id = $2 and id <> $3 and kind = 'trust' and not revoked
               and date_trunc('second', trust_expires_at) = date_trunc('second', $4::timestamptz))`

	beginTrustSQL = `
insert into trust_intents as t (id, project_id, user_id, ends_at) values ($3, $1, $2, $4)
on conflict (id) do update set ends_at = excluded.ends_at where t.project_id = excluded.project_id and t.user_id = excluded.user_id and not t.abandoned`
)

// Begin writes down that a trust is about to be made. Another end takes the place of the one before, of which Keystone has made no trust. free is
// false when another trust of the user ends in the same second: by that second the trust is found when its maker dies.
func (t TrustIntents) Begin(ctx context.Context, i domain.TrustIntent) (free bool, err error) {
	err = t.DB.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockTrustsSQL, i.ProjectID, i.UserID); err != nil {
			return err
		}
		var taken bool
		if err := tx.QueryRow(ctx, trustEndTakenSQL, i.ProjectID, i.UserID, i.ID, i.EndsAt).Scan(&taken); err != nil || taken {
			return err
		}
		tag, err := tx.Exec(ctx, beginTrustSQL, i.ProjectID, i.UserID, i.ID, i.EndsAt)
		if err == nil && tag.RowsAffected() == 0 {
			return tookTooLong(i.ID)
		}
		free = true
		return err
	})
	return free && err == nil, err
}

// IsStored says whether a trust is a connection's.
func (t TrustIntents) IsStored(ctx context.Context, projectID, trust string) (stored bool, err error) {
	err = t.DB.pool.QueryRow(ctx, "select exists (select from connections where project_id = $1 and kind = 'trust' and delegation_id = $2)", projectID, trust).Scan(&stored)
	return stored, classify(err)
}

func tookTooLong(id uuid.UUID) error {
	return apperr.New(apperr.Conflict, "making the connection %s took too long, and its trust is deleted: try again", id)
}

// finishTrust forgets the intent in the transaction that stores its connection. It is a Conflict when the trust is being deleted already.
func finishTrust(ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID) error {
	var abandoned bool
	rows, _ := tx.Query(ctx, "select abandoned from trust_intents where project_id = $1 and id = $2 for update", projectID, id)
	found, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err != nil || len(found) == 0 {
		return err
	}
	if abandoned = found[0]; abandoned {
		return tookTooLong(id)
	}
	_, err = tx.Exec(ctx, "delete from trust_intents where project_id = $1 and id = $2", projectID, id)
	return err
}

// Drop forgets an intent of which Keystone has no trust: it has refused it, or it is deleted.
func (t TrustIntents) Drop(ctx context.Context, projectID string, id uuid.UUID) error {
	_, err := t.DB.pool.Exec(ctx, "delete from trust_intents where project_id = $1 and id = $2 and not abandoned", projectID, id)
	return classify(err)
}

// The next pauses are written at once, so that of several replicas one looks, and another one when that dies.
const abandonedSQL = `
update trust_intents t
set abandoned = true, failures = t.failures + 1,
    not_before = clock_timestamp() + least($2::interval * power(2, least(t.failures, 20)), $3::interval)
where t.id in (select id from trust_intents where done_at is null and not_before <= clock_timestamp() order by not_before limit $1 for update skip locked)
returning t.id, t.project_id, t.user_id, t.ends_at`

// Abandoned lists intents of any project whose makers have died, and leaves each alone for a pause from now on: first, then twice as long each
// time, up to longest. No connection is stored for them any more.
func (t TrustIntents) Abandoned(ctx context.Context, limit int, first, longest time.Duration) ([]domain.TrustIntent, error) {
	rows, _ := t.DB.pool.Query(ctx, abandonedSQL, limit, first, longest)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.TrustIntent])
	return found, classify(err)
}

// Gone records that Keystone has no trust of an abandoned intent.
func (t TrustIntents) Gone(ctx context.Context, projectID string, id uuid.UUID) error {
	_, err := t.DB.pool.Exec(ctx, "update trust_intents set done_at = clock_timestamp() where project_id = $1 and id = $2 and abandoned", projectID, id)
	return classify(err)
}

// Retire forgets intents that were done longer ago than age. Until then a replica that was only slow learns that it was too late.
func (t TrustIntents) Retire(ctx context.Context, age time.Duration) error {
	_, err := t.DB.pool.Exec(ctx, "delete from trust_intents where done_at < now() - $1::interval", age)
	return classify(err)
}
