package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Outbox is what deliver-events needs of callbacks and their streams.
//
// A replica works on a stream under a claim. A stream's own row reports whether it has more to deliver (head < tail): a
// statement sees other tables as they were when it began, but the row that it waited for as it is now. In a batch,
// statements see all that was committed before the batch got its locks.
type Outbox struct{ DB *DB }

// streamDue is the condition that a stream s has something to deliver now, and that no one has claimed it.
var streamDue = "s.head < s.tail and s.next_at <= now() and " + due.Unclaimed("s", "now()")

var (
	// A callback that answered last time gets up to $5 streams in each replica. A callback that did not gets one stream
	// in all replicas together. A callback with a rate gets immediately what it may have in two seconds, and then
	// pauses until the rate is kept; a minute counts as 63 seconds to stay below the rate. A callback with $5 streams
	// in work on this replica is left out, so that it takes no other callback's slots. Projects take turns: the one
	// with the fewest streams in work here is first, however many callbacks another has. The statement waits for no
	// row. Writers of events never wait for these rows either: their foreign keys need no more than "no key update"
	// leaves.
	claimSQL = `
with held as (
    select * from unnest($6::text[], $7::uuid[], $8::int[]) as h(project_id, callback_id, streams)
), busy as (
    select project_id, sum(streams) as streams from held group by project_id
), due as materialized (
    select c.project_id, c.id, c.served_at,
        row_number() over (partition by c.project_id order by c.served_at nulls first) + coalesce(b.streams, 0) as turn
    from callbacks c left join busy b on b.project_id = c.project_id
    where c.status = 'verified' and (c.failures > 0) = $4 and coalesce(c.not_before, '-infinity') <= now()
      and ($4 or not exists (select from held h
                             where h.project_id = c.project_id and h.callback_id = c.id and h.streams >= $5))
      and exists (select from streams s where s.project_id = c.project_id and s.callback_id = c.id
          and ` + streamDue + `)
), ready as (
    select c.project_id, c.id, least(
        case when $4 then 1 - (select count(*) from streams s where s.project_id = c.project_id and s.callback_id = c.id
                               and s.head < s.tail and not ` + due.Unclaimed("s", "now()") + `)
             else $5 - coalesce((select h.streams from held h
                                 where h.project_id = c.project_id and h.callback_id = c.id), 0) end,
        ceil(c.allowed_rate / 60.0)) as room
    from due d join callbacks c on c.project_id = d.project_id and c.id = d.id
    where c.status = 'verified' and (c.failures > 0) = $4 and coalesce(c.not_before, '-infinity') <= now()
    order by d.turn, d.served_at nulls first
    limit $3 for no key update of c skip locked
), picked as (
    select p.* from ready r cross join lateral (
        select s.project_id, s.callback_id, s.stream from streams s
        where s.project_id = r.project_id and s.callback_id = r.id and ` + streamDue + `
        order by s.next_at limit greatest(r.room, 0)::bigint for update skip locked
    ) p limit $3
), claimed as (
    update streams s set claim_id = $1, claimed_until = now() + $2::interval from picked p
    where s.project_id = p.project_id and s.callback_id = p.callback_id and s.stream = p.stream
    returning s.project_id, s.callback_id
)
update callbacks c
set served_at = clock_timestamp(),
    not_before = case when c.allowed_rate is null then c.not_before
        else greatest(c.not_before,
            now() - interval '1 second') + t.streams * interval '63 seconds' / c.allowed_rate end
from (select project_id, callback_id, count(*) as streams from claimed group by 1, 2) t
where c.project_id = t.project_id and c.id = t.callback_id`

	// Retention may have deleted the events of a stream.
	skipSQL = `
update streams s set head = s.tail, ` + due.ReleaseSQL + `
where s.claim_id = $1 and not exists (
    select from deliveries d
    where d.project_id = s.project_id and d.callback_id = s.callback_id and d.stream = s.stream and d.seq > s.head)`

	attemptColumns = `
s.claim_id, c.project_id, c.id, c.url, c.secret, case when c.previous_until > now()
    then c.previous_secret end as previous_secret,
case when c.previous_until > now() then c.older_secrets else '{}' end as older_secrets,
coalesce(c.allowed_rate, 0) as allowed_rate, s.stream, d.seq, d.id as delivery, s.attempts as tries,
    c.failures as silences,
e.project_id as event_project, e.subject, e.seq as event_seq, e.type as event_type, e.at as event_at,
` + sentData + ` as event_data`

	attemptTables = `
join callbacks c on c.project_id = s.project_id and c.id = s.callback_id
cross join lateral (
    select * from deliveries d
    where d.project_id = s.project_id and d.callback_id = s.callback_id and d.stream = s.stream and d.seq > s.head
    order by d.seq limit 1
) d
join events e on e.project_id = d.event_project and e.subject = d.subject and e.seq = d.event_seq`

	claimedSQL = `select ` + attemptColumns + ` from streams s ` + attemptTables + ` where s.claim_id = $1`
)

// Claim claims streams that are due, at most room.Attempts, and gives the next delivery of each.
func (o Outbox) Claim(ctx context.Context, room domain.Room, claimFor time.Duration) ([]domain.Attempt, error) {
	size := len(room.InFlight)
	projects, callbacks, streams := make([]string, size), make([]uuid.UUID, size), make([]int, size)
	for i, h := range room.InFlight {
		projects[i], callbacks[i], streams[i] = h.ProjectID, h.CallbackID, h.Streams
	}
	claim := uuid.New()
	var claimed []attemptRow
	err := repeat(ctx, func() error {
		batch := &pgx.Batch{}
		batch.Queue(claimSQL, claim, claimFor, room.Attempts, room.Failing, room.PerCallback, projects, callbacks,
			streams)
		batch.Queue(skipSQL, claim)
		batch.Queue(claimedSQL, claim).Query(collectInto(&claimed))
		return o.DB.pool.SendBatch(ctx, batch).Close()
	})
	return attempts(claimed), classify(err)
}

// attemptRow is a row of attemptColumns.
type attemptRow struct {
	domain.Callback

	ClaimID  uuid.UUID
	Stream   string
	Seq      int64
	Delivery uuid.UUID
	Tries    int
	Silences int

	EventProject string
	Subject      string
	EventSeq     int64
	EventType    string
	EventAt      time.Time
	EventData    []byte
}

func attempts(rows []attemptRow) []domain.Attempt {
	list := make([]domain.Attempt, len(rows))
	for n, r := range rows {
		list[n] = domain.Attempt{
			Claim: domain.Claim{ID: r.ClaimID}, Callback: r.Callback, Stream: r.Stream, Seq: r.Seq,
			Delivery: r.Delivery, Tries: r.Tries, Silences: r.Silences,
			Event: domain.Event{
				ProjectID: r.EventProject, Subject: r.Subject, Seq: r.EventSeq, Type: r.EventType, At: r.EventAt,
				Data: r.EventData,
			},
		}
	}
	return list
}

// deliveredSQL ends a delivery. With $7 it renews the claim when the stream has a next delivery.
const deliveredSQL = `
with next as (
    select (select min(d.seq) from deliveries d where d.project_id = $1 and d.callback_id = $2 and d.stream = $3
        and d.seq > $4) as seq
    from callbacks c
    where c.project_id = $1 and c.id = $2 and $7 and c.status = 'verified'
        and coalesce(c.not_before, '-infinity') <= now()
), after as (
    update streams s
    set head = greatest(s.head, $4), attempts = 0, failing_since = null, next_at = now(),
        claim_id = case when (select seq from next) is not null then s.claim_id end,
        claimed_until = case when (select seq from next) is not null then now() + $8::interval end
    where s.project_id = $1 and s.callback_id = $2 and s.stream = $3 and s.claim_id = $5
    returning s.*
), delivered as (
    update deliveries d
    set status = 'delivered', attempts = d.attempts + 1, answer = nullif($9, 0), error = '', attempted_at = now()
    from after where d.project_id = $1 and d.id = $6
), well as (
    update callbacks c set failures = 0, failing_since = null
    from after where c.project_id = $1 and c.id = $2 and (c.failures > 0 or c.failing_since is not null)
)
select claim_id from after`

// nextSQL is the next delivery of a stream that is still claimed.
var nextSQL = claimedSQL + ` and s.project_id = $2 and s.callback_id = $3 and s.stream = $4`

// MarkDelivered records that the receiver took the event. With more it renews the claim and gives the stream's next
// attempt, if there is one; otherwise it releases the stream. It is domain.ErrFenced when another replica has the
// claim.
func (o Outbox) MarkDelivered(
	ctx context.Context, a domain.Attempt, answer int, more bool, claimFor time.Duration,
) (next *domain.Attempt, err error) {
	err = repeat(ctx, func() error {
		next, err = o.markDelivered(ctx, a, answer, more, claimFor)
		return err
	})
	return next, classify(ifNone(err, domain.ErrFenced))
}

func (o Outbox) markDelivered(
	ctx context.Context, a domain.Attempt, answer int, more bool, claimFor time.Duration,
) (*domain.Attempt, error) {
	batch := &pgx.Batch{}
	batch.Queue(deliveredSQL, a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Seq, a.Claim.ID, a.Delivery, more,
		claimFor, answer).
		QueryRow(func(row pgx.Row) error {
			var claim uuid.NullUUID
			return row.Scan(&claim)
		})
	var found []attemptRow
	if more {
		batch.Queue(nextSQL, a.Claim.ID, a.Callback.ProjectID, a.Callback.ID, a.Stream).Query(collectInto(&found))
	}
	if err := o.DB.pool.SendBatch(ctx, batch).Close(); err != nil || len(found) == 0 {
		return nil, err
	}
	return &attempts(found)[0], nil
}

// failedSQL ends an attempt. A delivery that has failed for $7 is dead, and the stream continues with the next. A
// callback that took nothing for as long is suspended. A callback whose receiver is gone ($12) gets no more deliveries.
const failedSQL = `
with verdict as (
    select s.*, coalesce(s.failing_since, now()) as since,
           coalesce(s.failing_since, now()) + $7::interval <= now() or $12 as dead
    from streams s
    where s.project_id = $1 and s.callback_id = $2 and s.stream = $3 and s.claim_id = $5
    for update
), after as (
    update streams s
    set head = case when v.dead then greatest(s.head, $4) else s.head end,
        attempts = case when v.dead then 0 else s.attempts + 1 end,
        failing_since = case when not v.dead then v.since end,
        next_at = case when v.dead then now() else least(now() + $8::interval, v.since + $7::interval) end,
            ` + due.ReleaseSQL + `
    from verdict v
    where s.project_id = v.project_id and s.callback_id = v.callback_id and s.stream = v.stream
    returning v.dead
), tried as (
    update deliveries d
    set status = case when after.dead then 'dead' else d.status end,
        attempts = d.attempts + 1, answer = nullif($10, 0), error = $11, attempted_at = now()
    from after where d.project_id = $1 and d.id = $6
), callback as (
    select c.*, after.dead, case
        when c.status <> 'verified' or c.project_id = '' then c.status -- the operator's sink is never suspended
        when $12 then 'gone'
        when after.dead and c.failing_since + $7::interval <= now() then 'suspended'
        else c.status end as new_status
    from callbacks c, after where c.project_id = $1 and c.id = $2
    for no key update of c
), paused as (
    update callbacks c
    set failing_since = coalesce(c.failing_since, now()),
        -- Failures at the same time count once.
        failures = case when $10 <> 0 then 0 when coalesce(c.not_before, '-infinity') <= now() then c.failures + 1
                        else c.failures end,
        not_before = case when $9::interval > interval '0' then greatest(c.not_before, now() + $9::interval)
            else c.not_before end,
        status = b.new_status, seq = c.seq + (b.new_status <> b.status)::int,
        reason = case when b.new_status <> b.status then $11 else c.reason end,
        updated_at = case when b.new_status <> b.status then now() else c.updated_at end
    from callback b where c.project_id = b.project_id and c.id = b.id
    returning c.*, b.status as previous_status
), event as (` + callbackEventSQL + ` paused where status <> previous_status)
select dead, (select status from paused) from after`

// callbackEventSQL writes the event of a callback's new status, from rows of callbacks with previous_status.
const callbackEventSQL = `
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, id::text, seq, '` + domain.CallbackEvent + `', updated_at,
           jsonb_strip_nulls(jsonb_build_object('callback_id', id, 'status', status, 'previous_status', previous_status,
                                                'reason', nullif(reason, '')))
    from`

// MarkFailed records that an attempt failed, and releases the stream. A delivery that has failed for longer than tryFor
// is dead, and a callback that took nothing for as long is suspended. It gives what became of both. It is
// domain.ErrFenced when another replica has the claim.
func (o Outbox) MarkFailed(
	ctx context.Context, a domain.Attempt, f domain.Outcome, tryFor time.Duration,
) (dead bool, status domain.CallbackStatus, err error) {
	type verdict struct {
		Dead   bool
		Status domain.CallbackStatus
	}
	v, err := write(ctx, o.DB, queryOne[verdict], failedSQL, a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Seq,
		a.Claim.ID, a.Delivery, tryFor, f.Pause, f.PauseAll, f.Answer, f.Reason, f.Gone)
	return v.Dead, v.Status, ifNone(err, domain.ErrFenced)
}

const postponeSQL = `
with after as (
    update streams s set next_at = now() + $6::interval, ` + due.ReleaseSQL + `
    where s.project_id = $1 and s.callback_id = $2 and s.stream = $3 and s.claim_id = $4
    returning s.project_id
), noted as (
    update deliveries d set error = $7 from after where d.project_id = $1 and d.id = $5
)
update callbacks c set not_before = greatest(c.not_before, now() + $6::interval) from after
where c.project_id = $1 and c.id = $2`

// Postpone ends the claim of a stream that could not be attempted for a reason which is not the receiver's: it counts
// as no failure, and all streams of the callback pause.
func (o Outbox) Postpone(ctx context.Context, a domain.Attempt, pause time.Duration, reason string) error {
	_, err := exec(ctx, o.DB.pool, postponeSQL, a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Claim.ID, a.Delivery,
		pause, reason)
	return err
}

// Release ends the claim of a stream whose attempt was interrupted.
func (o Outbox) Release(ctx context.Context, a domain.Attempt) error {
	_, err := exec(ctx, o.DB.pool, `
update streams set `+due.ReleaseSQL+` where project_id = $1 and callback_id = $2 and stream = $3 and claim_id = $4`,
		a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Claim.ID)
	return err
}

const (
	// Streams s of callbacks c that wait longer than their turn; a condition on c follows.
	pausedStreamsSQL = `
select s.project_id, s.callback_id, s.stream from streams s
join callbacks c on c.project_id = s.project_id and c.id = s.callback_id
where s.head < s.tail and (s.attempts > 0 or s.next_at > now()) and `

	endPauseSQL = `
update streams set next_at = now(), attempts = 0, failing_since = null
where head < tail and (project_id, callback_id, stream) `
)

// endFreePauses has the streams of callbacks c that meet a condition retried now, except those that are locked.
func endFreePauses(ctx context.Context, db querier, condition string, args ...any) error {
	_, err := exec(ctx, db, endPauseSQL+"in ("+pausedStreamsSQL+condition+" for update of s skip locked)", args...)
	return err
}

// endPauses has all streams of callbacks c that meet a condition retried now. It waits for locked ones one by one and
// holds no lock meanwhile: deliverers lock a stream before its callback, and writers of events lock streams in an order
// of their own.
func (db *DB) endPauses(ctx context.Context, condition string, args ...any) error {
	if err := endFreePauses(ctx, db.pool, condition, args...); err != nil {
		return err
	}
	locked, err := queryAll[struct {
		ProjectID  string
		CallbackID uuid.UUID
		Stream     string
	}](ctx, db.pool, pausedStreamsSQL+condition, args...)
	for _, s := range locked {
		if _, err := exec(ctx, db.pool, endPauseSQL+"= ($1, $2, $3)", s.ProjectID, s.CallbackID, s.Stream); err != nil {
			return err
		}
	}
	return err
}

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

// AbandonGone ends what waits for gone callbacks.
func (o Outbox) AbandonGone(ctx context.Context) error {
	return classify(repeat(ctx, func() error {
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
	return o.DB.change(ctx, func(tx pgx.Tx) error {
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
