package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Events are the outbox: what happened, kept until it is delivered and some time longer. The statement that changes an
// object writes its event; this store has what belongs to no such statement.
type Events struct{ DB *DB }

const announceSQL = `
insert into events (project_id, subject, seq, type, at, data) values ('', $1, 1, '` + domain.StatsEvent + `', $2, $3)
on conflict do nothing`

// Announce writes the event of each hour that has none yet, and says how many it has written. An hour has one event: a
// later change of its numbers writes none.
func (e Events) Announce(ctx context.Context, hours []domain.HourStat) (published int, err error) {
	err = e.DB.change(ctx, func(tx pgx.Tx) error {
		published = 0
		batch := &pgx.Batch{}
		for _, h := range hours {
			batch.Queue(announceSQL, domain.HourKey(h.Hour), h.Hour, h).Exec(func(tag pgconn.CommandTag) error {
				published += int(tag.RowsAffected())
				return nil
			})
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	return published, err
}

// An hour's event says that it was announced, so it is kept for longer than missing hours are filled in.
const (
	// Deliverers lock a stream before its delivery; so deliveries go last, by their foreign key.
	retireSQL = `
with old as (
    select project_id, subject, seq from events
    where at < now() - $1::interval and (type <> '` + domain.StatsEvent + `' or at < now() - interval '60 days')
    limit $2 for update skip locked
), lost as (
    select d.project_id, d.callback_id, d.stream, max(d.seq) as seq
    from deliveries d join old o on d.event_project = o.project_id and d.subject = o.subject and d.event_seq = o.seq
    group by 1, 2, 3
), past as (
    update streams s set head = greatest(s.head, l.seq) from lost l
    where s.project_id = l.project_id and s.callback_id = l.callback_id and s.stream = l.stream
)
delete from events e using old o where e.project_id = o.project_id and e.subject = o.subject and e.seq = o.seq`

	// A callback whose subject has ended, once its last delivery is retired; and a gone callback.
	retireCallbacksSQL = `
delete from callbacks where (project_id, id) in (
    select c.project_id, c.id from callbacks c
    where c.project_id <> '' and c.updated_at < now() - $1::interval
      and not exists (select from deliveries d where d.project_id = c.project_id and d.callback_id = c.id)
      and (c.status = 'gone'
        or c.connection_id is not null
           and not exists (select from connections k where k.id = c.connection_id and k.status = 'active')
        or exists (select from instances i
                   where i.project_id = coalesce(c.of_project, c.project_id) and i.id = c.instance_id
                       and i.state = 'deleted')
        or exists (select from orders o
                   where o.project_id = coalesce(c.of_project, c.project_id) and o.id = c.order_id
                       and o.status <> 'running'
                   and not exists (select from instances i where i.project_id = o.project_id and i.order_id = o.id
                                   and i.state <> 'deleted' and i.server_id is not null)))
    limit $2 for update of c skip locked
)`

	// An empty stream. No other table is read, because that could miss an event that is being written.
	retireStreamsSQL = `
delete from streams where (project_id, callback_id, stream) in (
    select project_id, callback_id, stream from streams
    where head = tail and next_at < now() - $1::interval limit $2 for update skip locked
) and head = tail`
)

// retireBatch bounds one statement of Retire.
const retireBatch = 1000

// Retire deletes events that happened longer ago than retention, with their deliveries, and callbacks that get nothing
// more.
func (e Events) Retire(ctx context.Context, retention time.Duration) error {
	for _, sql := range []string{retireSQL, retireStreamsSQL, retireCallbacksSQL} {
		for n := int64(retireBatch); n == retireBatch; {
			var err error
			if n, err = write(ctx, e.DB, exec, sql, retention, retireBatch); err != nil {
				return err
			}
		}
	}
	return nil
}
