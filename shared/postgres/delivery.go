package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Outbox is what deliver-events needs of callbacks and their streams.
//
// A copy holds a stream by a claim, which ends by itself, and every write of its work carries the claim. Whether a
// stream has more to deliver stands in its own row (head < tail), and is never read off another table in the statement
// that writes it: a statement sees other tables as they were when it began, but the row that it waited for as it is now.
// Statements that come after others in a batch see all that was committed before the batch got its locks.
type Outbox struct{ DB *DB }

const (
	// Callbacks that answered last time get up to $5 streams in each copy; of one that did not, one stream in all copies
	// together is tried. A callback with a rate is left alone after each for so long that the rate is kept, but for what it
	// may have in two seconds, which it gets at once; 63 seconds are counted as a minute, so that none has more than the rate.
	// Those that this copy holds as many streams of as it may are left out at once: they must not take the others' places.
	// Rows are never waited for, and who writes an event never waits for these: its foreign keys need no more than what
	// "no key update" leaves.
	claimSQL = `
with held as (
    select * from unnest($6::text[], $7::uuid[], $8::int[]) as h(project_id, callback_id, streams)
), ready as (
    select c.project_id, c.id, least(
        case when $4 then 1 - (select count(*) from streams s
                               where s.project_id = c.project_id and s.callback_id = c.id and s.head < s.tail and s.claimed_until >= now())
             else $5 - coalesce((select h.streams from held h where h.project_id = c.project_id and h.callback_id = c.id), 0) end,
        ceil(c.allowed_rate / 60.0)) as room
    from callbacks c
    where c.status = 'verified' and (c.failures > 0) = $4 and coalesce(c.not_before, '-infinity') <= now()
      and ($4 or not exists (select from held h where h.project_id = c.project_id and h.callback_id = c.id and h.streams >= $5))
      and exists (select from streams s where s.project_id = c.project_id and s.callback_id = c.id
                  and s.head < s.tail and s.next_at <= now() and coalesce(s.claimed_until, '-infinity') < now())
    order by c.served_at nulls first
    limit $3 for no key update of c skip locked
), picked as (
    select p.* from ready r cross join lateral (
        select s.project_id, s.callback_id, s.stream from streams s
        where s.project_id = r.project_id and s.callback_id = r.id
          and s.head < s.tail and s.next_at <= now() and coalesce(s.claimed_until, '-infinity') < now()
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
        else greatest(c.not_before, now() - interval '1 second') + t.streams * interval '63 seconds' / c.allowed_rate end
from (select project_id, callback_id, count(*) as streams from claimed group by 1, 2) t
where c.project_id = t.project_id and c.id = t.callback_id`

	// What was to be delivered may have been deleted for its age.
	skipSQL = `
update streams s set head = s.tail, claim_id = null, claimed_until = null
where s.claim_id = $1 and not exists (
    select from deliveries d
    where d.project_id = s.project_id and d.callback_id = s.callback_id and d.stream = s.stream and d.seq > s.head)`

	attemptColumns = `
s.claim_id, c.project_id, c.id, c.url, c.secret, c.previous_secret, coalesce(c.previous_until > now(), false), coalesce(c.allowed_rate, 0),
s.stream, d.seq, d.id, s.attempts, c.failures, e.project_id, e.subject, e.seq, e.type, e.at,
-- Who acts through a connection is not told who else does, nor who of its owners.
(case when c.project_id in ('', e.project_id) or e.data #>> '{actor,project_id}' = c.project_id then e.data else e.data - 'actor' end)::text`

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

// Claim takes streams that are due, and gives the next delivery of each: at most room.Attempts. The callbacks that
// waited longest come first.
func (o Outbox) Claim(ctx context.Context, room domain.Room, claimFor time.Duration) ([]domain.Attempt, error) {
	projects, callbacks, streams := make([]string, len(room.Held)), make([]uuid.UUID, len(room.Held)), make([]int, len(room.Held))
	for i, h := range room.Held {
		projects[i], callbacks[i], streams[i] = h.ProjectID, h.CallbackID, h.Streams
	}
	claim := uuid.New()
	var attempts []domain.Attempt
	err := again(func() error {
		batch := &pgx.Batch{}
		batch.Queue(claimSQL, claim, claimFor, room.Attempts, room.Silent, room.PerCallback, projects, callbacks, streams)
		batch.Queue(skipSQL, claim)
		batch.Queue(claimedSQL, claim).Query(func(rows pgx.Rows) (err error) {
			attempts, err = pgx.CollectRows(rows, scanAttempt)
			return err
		})
		return o.DB.pool.SendBatch(ctx, batch).Close()
	})
	return attempts, classify(err)
}

func scanAttempt(row pgx.CollectableRow) (domain.Attempt, error) {
	var a domain.Attempt
	var overlap bool
	c, e := &a.Callback, &a.Event
	err := row.Scan(&a.Claim, &c.ProjectID, &c.ID, &c.URL, &c.Secret, &c.PreviousSecret, &overlap, &c.AllowedRate,
		&a.Stream, &a.Seq, &a.Delivery, &a.Tries, &a.Silences, &e.ProjectID, &e.Subject, &e.Seq, &e.Type, &e.At, &e.Data)
	if !overlap { // its time is over
		c.PreviousSecret = nil
	}
	e.At = e.At.UTC()
	return a, err
}

// deliveredSQL ends a delivery, and gives the stream's next with the claim prolonged when $7 asks for it.
const deliveredSQL = `
with next as (
    select (select min(d.seq) from deliveries d where d.project_id = $1 and d.callback_id = $2 and d.stream = $3 and d.seq > $4) as seq
    from callbacks c
    where c.project_id = $1 and c.id = $2 and $7 and c.status = 'verified' and coalesce(c.not_before, '-infinity') <= now()
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

// nextSQL is what a stream that is still claimed has to deliver next.
const nextSQL = claimedSQL + ` and s.project_id = $2 and s.callback_id = $3 and s.stream = $4`

// Delivered writes that the receiver took the event. When goOn is set and there is a next event in the stream, the claim
// is prolonged and the attempt to deliver it is given; else the stream is free. domain.ErrFenced when the claim has passed on.
func (o Outbox) Delivered(
	ctx context.Context, a domain.Attempt, answer int, goOn bool, claimFor time.Duration,
) (next *domain.Attempt, err error) {
	err = again(func() error {
		next, err = o.delivered(ctx, a, answer, goOn, claimFor)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, domain.ErrFenced
	}
	return next, classify(err)
}

func (o Outbox) delivered(
	ctx context.Context, a domain.Attempt, answer int, goOn bool, claimFor time.Duration,
) (next *domain.Attempt, err error) {
	batch := &pgx.Batch{}
	batch.Queue(deliveredSQL, a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Seq, a.Claim, a.Delivery, goOn, claimFor, answer).
		QueryRow(func(row pgx.Row) error {
			var claim uuid.NullUUID
			return row.Scan(&claim)
		})
	if goOn {
		batch.Queue(nextSQL, a.Claim, a.Callback.ProjectID, a.Callback.ID, a.Stream).Query(func(rows pgx.Rows) error {
			found, err := pgx.CollectRows(rows, scanAttempt)
			if len(found) > 0 {
				next = &found[0]
			}
			return err
		})
	}
	err = o.DB.pool.SendBatch(ctx, batch).Close()
	return next, err
}

// failedSQL ends an attempt. A delivery that has been failing for $7 is dead, and the stream goes on; a callback that took
// nothing at all for as long is suspended. One that is gone ($12) gets nothing more.
const failedSQL = `
with verdict as (
    select s.*, coalesce(s.failing_since, now()) as since, coalesce(s.failing_since, now()) + $7::interval <= now() or $12 as dead
    from streams s
    where s.project_id = $1 and s.callback_id = $2 and s.stream = $3 and s.claim_id = $5
    for update
), after as (
    update streams s
    set head = case when v.dead then greatest(s.head, $4) else s.head end,
        attempts = case when v.dead then 0 else s.attempts + 1 end,
        failing_since = case when not v.dead then v.since end,
        next_at = case when v.dead then now() else least(now() + $8::interval, v.since + $7::interval) end,
        claim_id = null, claimed_until = null
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
        when c.status <> 'verified' or c.project_id = '' then c.status -- the operator's sink is not given up
        when $12 then 'gone'
        when after.dead and c.failing_since + $7::interval <= now() then 'suspended'
        else c.status end as new_status
    from callbacks c, after where c.project_id = $1 and c.id = $2
    for no key update of c
), left_alone as (
    update callbacks c
    set failing_since = coalesce(c.failing_since, now()),
        -- What failed at the same time counts once.
        failures = case when $10 <> 0 then 0 when coalesce(c.not_before, '-infinity') <= now() then c.failures + 1 else c.failures end,
        not_before = case when $9::interval > interval '0' then greatest(c.not_before, now() + $9::interval) else c.not_before end,
        status = b.new_status, seq = c.seq + (b.new_status <> b.status)::int,
        reason = case when b.new_status <> b.status then $11 else c.reason end,
        updated_at = case when b.new_status <> b.status then now() else c.updated_at end
    from callback b where c.project_id = b.project_id and c.id = b.id
    returning c.*, b.status as previous_status
), event as (` + callbackEventSQL + ` left_alone where status <> previous_status)
select dead, (select status from left_alone) from after`

// callbackEventSQL writes the event of a callback's new status, from rows of callbacks with previous_status.
const callbackEventSQL = `
    insert into events (project_id, subject, seq, type, at, data)
    select project_id, id::text, seq, '` + domain.CallbackEvent + `', updated_at,
           jsonb_strip_nulls(jsonb_build_object('callback_id', id, 'status', status, 'previous_status', previous_status, 'reason', nullif(reason, '')))
    from`

// Failed writes that an attempt failed, and frees the stream. A delivery that has failed for longer than giveUp is dead
// from now on, and a callback that took nothing for as long is suspended. It says what became of both; domain.ErrFenced
// when the claim has passed on.
func (o Outbox) Failed(
	ctx context.Context, a domain.Attempt, f domain.Outcome, giveUp time.Duration,
) (dead bool, status domain.CallbackStatus, err error) {
	err = again(func() error {
		return o.DB.pool.QueryRow(ctx, failedSQL, a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Seq, a.Claim, a.Delivery,
			giveUp, f.Pause, f.PauseAll, f.Answer, f.Reason, f.Gone).Scan(&dead, &status)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, "", domain.ErrFenced
	}
	return dead, status, classify(err)
}

// Release frees a stream whose delivery was not tried to its end.
func (o Outbox) Release(ctx context.Context, a domain.Attempt) error {
	_, err := o.DB.pool.Exec(ctx, `
update streams set claim_id = null, claimed_until = null
where project_id = $1 and callback_id = $2 and stream = $3 and claim_id = $4`, a.Callback.ProjectID, a.Callback.ID, a.Stream, a.Claim)
	return classify(err)
}
