package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Who acts through a connection is not told who else does, nor who of its owners.
const historySQL = `
select e.project_id, e.subject, e.seq, e.type, e.at,
       (case when e.project_id = $5 or e.data #>> '{actor,project_id}' = $5 then e.data else e.data - 'actor' end)::text
from events e
where e.project_id = $1 and e.subject = $2::text and e.data->>'instance_id' = $2::text
  and ($3::uuid is null or e.connection_id = $3) and ($4::bigint = 0 or e.seq < $4)
order by e.seq desc limit $6`

// History reads what happened to an instance, the newest first, as far as events are kept: events before the one of a
// number (0 = the newest). Through a connection (not the zero id) what happened through that. The project is that of whoever reads.
func (i Instances) History(
	ctx context.Context, projectID string, instance, connection uuid.UUID, before int64, limit int, reader string,
) ([]domain.Event, error) {
	rows, _ := i.DB.pool.Query(ctx, historySQL, projectID, instance.String(), orNullID(connection), before, reader, limit)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e domain.Event, err error) {
		err = row.Scan(&e.ProjectID, &e.Subject, &e.Seq, &e.Type, &e.At, &e.Data)
		e.At = e.At.UTC()
		return e, err
	})
	return found, classify(err)
}
