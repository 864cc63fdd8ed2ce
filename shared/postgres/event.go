package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Events are the outbox: what happened, until everybody has been told and some time longer. Whoever changes a thing
// writes its event in the same statement; here is what has no such place.
type Events struct{ DB *DB }

const announceSQL = `
insert into events (project_id, subject, seq, type, at, data) values ('', $1, 1, '` + domain.StatsEvent + `', $2, $3)
on conflict do nothing`

// Announce writes the event of each hour that has none yet, and says how many these were. An hour's event is its first:
// should its numbers change later, no second one says so.
func (e Events) Announce(ctx context.Context, hours []domain.HourStat) (told int, err error) {
	batch := &pgx.Batch{}
	for _, h := range hours {
		batch.Queue(announceSQL, domain.HourKey(h.Hour), h.Hour, h).Exec(func(tag pgconn.CommandTag) error {
			told += int(tag.RowsAffected())
			return nil
		})
	}
	err = e.DB.inTx(ctx, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	return told, err
}

// What says that an hour was announced is its event, which therefore outlives any window in which hours are filled in.
const (
	retireSQL = `
with old as (
    select project_id, subject, seq from events
    where at < now() - $1::interval and (type <> '` + domain.StatsEvent + `' or at < now() - interval '60 days')
    limit $2 for update skip locked
), lost as (
    delete from deliveries d using old o
    where d.event_project = o.project_id and d.subject = o.subject and d.event_seq = o.seq
    returning d.project_id, d.callback_id, d.stream, d.seq
), past as (
    update streams s set head = greatest(s.head, l.seq)
    from (select project_id, callback_id, stream, max(seq) as seq from lost group by 1, 2, 3) l
    where s.project_id = l.project_id and s.callback_id = l.callback_id and s.stream = l.stream
)
delete from events e using old o where e.project_id = o.project_id and e.subject = o.subject and e.seq = o.seq`

	// A stream that is empty in itself; nothing else is asked, so that no event that is being written is overlooked.
	retireStreamsSQL = `
delete from streams where (project_id, callback_id, stream) in (
    select project_id, callback_id, stream from streams
    where head = tail and next_at < now() - $1::interval limit $2 for update skip locked
) and head = tail`
)

// retireAtOnce bounds one statement of Retire.
const retireAtOnce = 1000

// Retire deletes events that happened longer ago than retention, with their deliveries, whatever became of these.
func (e Events) Retire(ctx context.Context, retention time.Duration) error {
	for _, sql := range []string{retireSQL, retireStreamsSQL} {
		for {
			tag, err := e.DB.pool.Exec(ctx, sql, retention, retireAtOnce)
			if err != nil {
				return classify(err)
			}
			if tag.RowsAffected() < retireAtOnce {
				break
			}
		}
	}
	return nil
}
