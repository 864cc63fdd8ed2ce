package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const pressingSQL = `
select exists (
    select from callbacks c
    where c.status = 'verified' and coalesce(c.not_before, '-infinity') <= now() + $1::interval
      and exists (select from streams s where s.project_id = c.project_id and s.callback_id = c.id
                  and s.head < s.tail and s.next_at <= now() + $1::interval and coalesce(s.claimed_until, '-infinity') < now() + $1::interval)
) or exists (
    select from callbacks
    where status = 'pending' and coalesce(not_before, '-infinity') <= now() + $1::interval
      and coalesce(claimed_until, '-infinity') < now() + $1::interval
)`

// Pressing says whether anything is due now or soon that nobody works on.
func (o Outbox) Pressing(ctx context.Context, soon time.Duration) (bool, error) {
	var pressing bool
	err := o.DB.pool.QueryRow(ctx, pressingSQL, soon).Scan(&pressing)
	return pressing, classify(err)
}

const (
	buryStreamsSQL = `
update streams set claim_id = $1, claimed_until = now() where (project_id, callback_id, stream) in (
    select s.project_id, s.callback_id, s.stream from streams s join callbacks c on c.project_id = s.project_id and c.id = s.callback_id
    where c.status = 'gone' and s.head < s.tail for update of s skip locked
)`
	buryDeliveriesSQL = `
update deliveries d set status = 'dead', error = 'the receiver is gone' from streams s
where s.claim_id = $1 and d.project_id = s.project_id and d.callback_id = s.callback_id and d.stream = s.stream
  and d.seq > s.head and d.status = 'due'`
	buriedSQL = `update streams set head = tail, claim_id = null, claimed_until = null where claim_id = $1`
)

// Bury gives up what waits for callbacks that are gone.
func (o Outbox) Bury(ctx context.Context) error {
	return classify(again(func() error {
		claim := uuid.New()
		batch := &pgx.Batch{}
		for _, sql := range []string{buryStreamsSQL, buryDeliveriesSQL, buriedSQL} {
			batch.Queue(sql, claim)
		}
		return o.DB.pool.SendBatch(ctx, batch).Close()
	}))
}

// The operator's sink is a callback of no project, under the zero UUID.
const (
	sinkThereSQL = `select exists (select from callbacks where project_id = '' and id = $1)`
	noSinkSQL    = `delete from callbacks where project_id = '' and id = $1`
	sinkSQL      = `
with sink as (
    insert into callbacks (project_id, id, user_id, url, status, secret) values ('', $1, '', '', 'verified', '')
    on conflict do nothing returning *
), told as (
    select c.id as callback_id, '/' || e.subject as stream, e.seq, e.subject, e.at
    from sink c, events e where e.project_id = '' and e.at > now() - $2::interval
), delivery as (
    insert into deliveries (project_id, callback_id, stream, seq, event_project, subject, event_seq, created_at)
    select '', callback_id, stream, seq, '', subject, seq, at from told
)
insert into streams (project_id, callback_id, stream, head, tail, next_at)
select '', callback_id, stream, min(seq) - 1, max(seq), min(at) from told group by callback_id, stream`
)

// Sink makes the operator's sink a receiver of every event from now on, and of the cloud's own that happened within past;
// or makes it none.
func (o Outbox) Sink(ctx context.Context, wanted bool, past time.Duration) error {
	var there bool
	err := o.DB.pool.QueryRow(ctx, sinkThereSQL, uuid.Nil).Scan(&there)
	if err != nil || there == wanted {
		return classify(err)
	}
	return again(func() error {
		return o.DB.inTx(ctx, func(tx pgx.Tx) error {
			if !wanted {
				_, err := tx.Exec(ctx, noSinkSQL, uuid.Nil)
				return err
			}
			// No event is being written now, so that each is one of the past, or one that finds the sink.
			if _, err := tx.Exec(ctx, "lock table events in share mode"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sinkSQL, uuid.Nil, past)
			return err
		})
	})
}
