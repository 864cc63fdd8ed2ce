package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// farAway is after every lease.
var farAway = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)

// hostTimesSQL are for each matching host the time from which it can be free ($8, or when it is expected back) and
// what is allocated until $9, sorted. Gaps are not computed here: that takes longer than all of the rest.
const hostTimesSQL = `
with hosts as materialized (
    select n.name, greatest($8::timestamptz, case when not ` + inServiceSQL + ` then ` + backSQL + ` end) as "from"
    from nodes n where ` + matchSQL + `
), busy as (
    select node, range_agg(during) as during from allocations where during && tstzrange($8, $9) group by node
)
select "from", during as busy from hosts left join busy on busy.node = hosts.name`

// hostTimes are when a host is not free: before From, and while it is busy.
type hostTimes struct {
	From time.Time
	Busy pgtype.Multirange[pgtype.Range[pgtype.Timestamptz]]
}

// gaps are the times until the end in which the host is free for as long at least.
func (h hostTimes) gaps(until time.Time, shortest time.Duration) (free []gap) {
	at := h.From
	add := func(end time.Time) {
		if end.Sub(at) >= shortest {
			free = append(free, gap{at, end})
		}
	}
	for _, busy := range h.Busy {
		add(busy.Lower.Time)
		if busy.Upper.Time.After(at) {
			at = busy.Upper.Time
		}
	}
	add(until)
	return free
}

// gap is a time in which a host is free.
type gap struct{ From, Until time.Time }

// search is a search for times in which so many hosts are free.
type search struct {
	from, until  time.Time
	hosts, limit int
	end          func(start time.Time) time.Time // of what begins then; a later start has no earlier end
}

// Availability lists periods in which so many hosts are free for the duration and the cleaning after it, the earliest
// first. Until is the end of the time in which the same hosts are free, without the cleaning. No period is part of
// another.
func (s Leases) Availability(ctx context.Context, q domain.FreeQuery) ([]domain.FreeSlot, error) {
	if q.Hosts < 1 || q.Limit < 1 || q.Length.IsZero() {
		return nil, apperr.New(apperr.Internal, "internal error")
	}
	match, err := matchArgs(ctx, s.DB.pool, q.Want)
	if err != nil {
		return nil, err
	}
	slots, err := freeSlots(ctx, s.DB.pool, match, search{
		from: q.From, until: q.Until.Add(q.Cleaning), hosts: q.Hosts, limit: q.Limit,
		end: func(start time.Time) time.Time { return q.Length.AddTo(start).Add(q.Cleaning) },
	})
	for n := range slots {
		slots[n].Until = slots[n].Until.Add(-q.Cleaning)
	}
	return slots, err
}

// calendarSlack is by how much a period of months or years can be shorter than the same from another start, of its
// length: February has 28 days of 31.
const calendarSlack = 10

// freeSlots reads the hosts' times and finds the periods. match are those of matchArgs.
func freeSlots(ctx context.Context, db querier, match []any, q search) ([]domain.FreeSlot, error) {
	longest := q.end(q.from).Sub(q.from)
	hosts, err := queryAll[hostTimes](ctx, db, hostTimesSQL, append(match, q.from, q.until)...)
	if err != nil {
		return nil, err
	}
	until := q.until.Truncate(time.Microsecond) // as Postgres has it
	var gaps []gap
	for _, h := range hosts {
		gaps = append(gaps, h.gaps(until, longest-longest/calendarSlack)...)
	}
	return sweep(gaps, q), nil
}

// sweep finds the first periods in which so many gaps last until the end of what begins with them.
func sweep(gaps []gap, q search) (slots []domain.FreeSlot) {
	slices.SortFunc(gaps, func(a, b gap) int { return a.From.Compare(b.From) })
	var ends []time.Time // of the gaps that are open, the first end first
	for n, g := range gaps {
		at, _ := slices.BinarySearchFunc(ends, g.Until, time.Time.Compare)
		ends = slices.Insert(ends, at, g.Until)
		if n+1 < len(gaps) && gaps[n+1].From.Equal(g.From) {
			continue
		}
		over, _ := slices.BinarySearchFunc(ends, q.end(g.From), time.Time.Compare)
		ends = slices.Delete(ends, 0, over)
		if len(ends) < q.hosts {
			continue
		}
		until := ends[len(ends)-q.hosts]
		if len(slots) > 0 && !until.After(slots[len(slots)-1].Until) {
			continue // it is part of the one before
		}
		free, _ := slices.BinarySearchFunc(ends, until, time.Time.Compare)
		slots = append(slots, domain.FreeSlot{From: g.From, Until: until, Hosts: len(ends) - free})
		if len(slots) == q.limit {
			break
		}
	}
	return slots
}
