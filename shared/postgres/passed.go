package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// passSQL writes a state that an instance only passed through, with its event, unless anything was written of it
// since it was read: then another replica has done so, or what it wrote came after.
const passSQL = `
with before as (
    select i.* from instances i
    where i.project_id = $1 and i.id = $2 and i.server_id = $3 and i.seq = $4 and i.state not in ('deleted', $5)
      and i.disconnected_at is null and coalesce(i.seen_at, '-infinity') <= $7
    for update
), after as (
    update instances i set state = $5, raw_status = $6, problem = null, seq = i.seq + 1, updated_at = clock_timestamp()
    from before b where i.project_id = b.project_id and i.id = b.id
    returning i.*, b.state as previous_state, null::jsonb as actor
)
insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
select project_id, id::text, seq, '` + domain.InstanceEvent + `', updated_at, order_id, connection_id,
       ` + instanceData + ` || jsonb_build_object('reconstructed', true, 'changed_at', to_char($8::timestamptz at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
from after`

// ChangeAfter is Change, but first it writes the states that instances passed through unseen, in their order. Seq is that of
// the instance as it was read.
func (i Instances) ChangeAfter(ctx context.Context, known []domain.Instance, passed map[string][]domain.Passed) (published int, err error) {
	known = inOrder(known)
	err = retryDeadlock(func() error {
		return i.DB.inTx(ctx, func(tx pgx.Tx) (err error) {
			published, err = changeAllAfter(ctx, tx, known, passed)
			return err
		})
	})
	return published, err
}

// changeAllAfter writes instance after instance, so that all who write lock them in the same order.
func changeAllAfter(ctx context.Context, tx pgx.Tx, known []domain.Instance, passed map[string][]domain.Passed) (published int, err error) {
	batch := &pgx.Batch{}
	for _, k := range known {
		for n, p := range passed[k.ServerID] {
			batch.Queue(passSQL, k.ProjectID, k.ID, k.ServerID, k.Seq+int64(n), p.State, p.Status, k.SeenAt, p.At).Exec(func(tag pgconn.CommandTag) error {
				published += int(tag.RowsAffected())
				return nil
			})
		}
		queueChange(batch, k, uuid.NullUUID{}, domain.ActorIn(ctx)).QueryRow(func(row pgx.Row) error {
			var n int
			err := row.Scan(&n)
			published += n
			return err
		})
	}
	err = tx.SendBatch(ctx, batch).Close()
	return published, err
}
