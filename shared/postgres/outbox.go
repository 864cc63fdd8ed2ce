package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/due"
)

// greatest ignores nulls: a row without a pause or a claim is due by the rest.
const nextDueSQL = `
select min(at) - now() from (
    select greatest(s.next_at, s.claimed_until, c.not_before) as at
    from streams s join callbacks c on c.project_id = s.project_id and c.id = s.callback_id
    where s.head < s.tail and s.next_at <= now() + $1::interval
      and c.status = 'verified' and coalesce(c.not_before, '-infinity') <= now() + $1::interval
    union all
    select greatest(c.not_before, c.claimed_until, c.created_at) from callbacks c
    where c.status = 'pending' and coalesce(c.not_before, '-infinity') <= now() + $1::interval
) due where at <= now() + $1::interval`

// NextDue returns when the next delivery or handshake is due that no replica has claimed then; isPending is false when
// none is due within the given time.
func (o Outbox) NextDue(ctx context.Context, within time.Duration) (due time.Duration, isPending bool, err error) {
	next, err := queryValue[*time.Duration](ctx, o.DB.pool, nextDueSQL, within)
	if err != nil || next == nil {
		return 0, false, err
	}
	return *next, true, nil
}

const (
	abandonStreamsSQL = `
update streams set claim_id = $1, claimed_until = now() where (project_id, callback_id, stream) in (
    select s.project_id, s.callback_id, s.stream
    from streams s join callbacks c on c.project_id = s.project_id and c.id = s.callback_id
    where c.status = 'gone' and s.head < s.tail for update of s skip locked
)`
	abandonDeliveriesSQL = `
update deliveries d set status = 'dead', error = 'the receiver is gone' from streams s
where s.claim_id = $1 and d.project_id = s.project_id and d.callback_id = s.callback_id and d.stream = s.stream
  and d.seq > s.head and d.status = 'due'`
	skipStreamsSQL = `update streams set head = tail, ` + due.ReleaseSQL + ` where claim_id = $1`
)

// AbandonGone ends what waits for callbacks that are gone.
func (o Outbox) AbandonGone(ctx context.Context) error {
	return classify(retryDeadlock(ctx, func() error {
		claim := uuid.New()
		batch := &pgx.Batch{}
		for _, sql := range []string{abandonStreamsSQL, abandonDeliveriesSQL, skipStreamsSQL} {
			batch.Queue(sql, claim)
		}
		return o.DB.pool.SendBatch(ctx, batch).Close()
	}))
}

// The operator's sink is a callback of no project, under the zero UUID.
const (
	sinkExistsSQL = `select exists (select from callbacks where project_id = '' and id = $1)`
	deleteSinkSQL = `delete from callbacks where project_id = '' and id = $1`
	insertSinkSQL = `
with sink as (
    insert into callbacks (project_id, id, user_id, url, status, secret) values ('', $1, '', '', 'verified', '')
    on conflict do nothing returning *
), past as (
    select c.id as callback_id, '/' || e.subject as stream, e.seq, e.subject, e.at
    from sink c, events e where e.project_id = '' and e.at > now() - $2::interval
), delivery as (
    insert into deliveries (project_id, callback_id, stream, seq, event_project, subject, event_seq, created_at)
    select '', callback_id, stream, seq, '', subject, seq, at from past
)
insert into streams (project_id, callback_id, stream, head, tail, next_at)
select '', callback_id, stream, min(seq) - 1, max(seq), min(at) from past group by callback_id, stream`
)

// SetSink subscribes the operator's sink to every event from now on, and to the cloud's own of the time past; or
// unsubscribes it.
func (o Outbox) SetSink(ctx context.Context, enabled bool, past time.Duration) error {
	exists, err := queryValue[bool](ctx, o.DB.pool, sinkExistsSQL, uuid.Nil)
	if err != nil || exists == enabled {
		return err
	}
	return o.DB.changeTx(ctx, func(tx pgx.Tx) error {
		if !enabled {
			_, err := tx.Exec(ctx, deleteSinkSQL, uuid.Nil)
			return err
		}
		// No event is being written now: each is one of the past, or finds the sink.
		if _, err := tx.Exec(ctx, "lock table events in share mode"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, insertSinkSQL, uuid.Nil, past)
		return err
	})
}
