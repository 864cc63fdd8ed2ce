package postgres

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// farAway is after every lease.
var farAway = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)

// hostTimesSQL are for each of the hosts ($1) the time from which it can be free ($2, or when it is expected back) and
// what is allocated until $3, sorted, the best host first. Gaps are not computed here: that takes longer than all of
// the rest.
var hostTimesSQL = `
with hosts as materialized (
    select n.name, greatest($2::timestamptz, case when not ` + inServiceSQL + ` then ` + backSQL + ` end) as "from",
           row_number() over (order by ` + bestFirst + `) as place
    from nodes n where n.name = any($1::text[])
), busy as (
    select node, range_agg(during) as during from allocations where during && tstzrange($2, $3) group by node
)
select name, "from", during as busy from hosts left join busy on busy.node = hosts.name order by place`

// hostTimes are when a host is not free: before From, and while it is busy.
type hostTimes struct {
	Name string
	From time.Time
	Busy pgtype.Multirange[pgtype.Range[pgtype.Timestamptz]]

	fits uint64 // the needs of a booking that it matches, a bit of each
}

// readTimes reads when hosts are not free between two times, the best host first.
func readTimes(ctx context.Context, db querier, names []string, from, until time.Time) ([]hostTimes, error) {
	return queryAll[hostTimes](ctx, db, hostTimesSQL, names, from, until)
}

// gap is a time in which a host is free.
type gap struct {
	From, Until time.Time
	host        int
}

// gapsOf are the times until the end in which hosts are free for so long, or a little shorter: months differ.
func gapsOf(hosts []hostTimes, length time.Duration, until time.Time) (free []gap) {
	shortest := length - length/calendarSlack
	for n, h := range hosts {
		at := h.From
		add := func(end time.Time) {
			if end.Sub(at) >= shortest {
				free = append(free, gap{From: at, Until: end, host: n})
			}
		}
		for _, busy := range h.Busy {
			add(busy.Lower.Time)
			if busy.Upper.Time.After(at) {
				at = busy.Upper.Time
			}
		}
		add(until)
	}
	return free
}

func untilOf(g gap, at time.Time) int { return g.Until.Compare(at) }

// starts are the times at which gaps begin, each with the gaps that last until the end of what begins then, the first
// end first.
func starts(gaps []gap, end func(start time.Time) time.Time) iter.Seq2[time.Time, []gap] {
	slices.SortFunc(gaps, func(a, b gap) int { return a.From.Compare(b.From) })
	return func(yield func(time.Time, []gap) bool) {
		var open []gap
		for n, g := range gaps {
			at, _ := slices.BinarySearchFunc(open, g.Until, untilOf)
			open = slices.Insert(open, at, g)
			if n+1 < len(gaps) && gaps[n+1].From.Equal(g.From) {
				continue
			}
			over, _ := slices.BinarySearchFunc(open, end(g.From), untilOf)
			open = slices.Delete(open, 0, over)
			if !yield(g.From, open) {
				return
			}
		}
	}
}

// Availability lists periods in which so many hosts are free for the duration and the cleaning after it, the earliest
// first. Until is the end of the time in which the same hosts are free, without the cleaning. No period is part of
// another.
func (s Leases) Availability(ctx context.Context, q domain.FreeQuery) (slots []domain.FreeSlot, err error) {
	if q.Hosts < 1 || q.Limit < 1 || q.Length.IsZero() {
		return nil, apperr.New(apperr.Internal, "internal error")
	}
	match, err := matchArgs(ctx, s.DB.pool, q.Want, "", uuid.Nil)
	if err != nil {
		return nil, err
	}
	names, err := queryColumn[string](ctx, s.DB.pool, matchingSQL, match...)
	if err != nil {
		return nil, err
	}
	until := q.Until.Add(q.Cleaning).Truncate(time.Microsecond) // as Postgres has it
	hosts, err := readTimes(ctx, s.DB.pool, names, q.From, until)
	if err != nil {
		return nil, err
	}
	end := func(start time.Time) time.Time { return q.Length.AddTo(start).Add(q.Cleaning) }
	for at, open := range starts(gapsOf(hosts, end(q.From).Sub(q.From), until), end) {
		if len(open) < q.Hosts {
			continue
		}
		last := open[len(open)-q.Hosts].Until.Add(-q.Cleaning)
		if len(slots) > 0 && !last.After(slots[len(slots)-1].Until) {
			continue // it is part of the one before
		}
		free, _ := slices.BinarySearchFunc(open, last.Add(q.Cleaning), untilOf)
		slots = append(slots, domain.FreeSlot{From: at, Until: last, Hosts: len(open) - free})
		if len(slots) == q.Limit {
			break
		}
	}
	return slots, nil
}

// calendarSlack is by how much a period of months or years can be shorter than the same from another start, of its
// length: February has 28 days of 31.
const calendarSlack = 10
