package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// farAway is after every lease.
var farAway = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)

// gapsSQL are the times from $8 to $9 in which each matching host is free for $10 at least. A row at the end of the
// time stands for each of them. Without a join (coalesce keeps the planner from making one), no plan is slow while the
// tables have no statistics yet.
const gapsSQL = `
with hosts as materialized (
    select n.name from nodes n where ` + matchSQL + `
), times as (
    select name as node, $9::timestamptz as low, null::timestamptz as high from hosts
    union all
    select node, lower(during), upper(during) from allocations
    where during && tstzrange($8, $9) and coalesce(node in (select name from hosts), false)
), gaps as (
    select coalesce(lag(high) over (partition by node order by low), $8) as "from", low as until from times
)
select "from", until from gaps where until - "from" >= $10::interval`

// gap is a time in which a host is free.
type gap struct{ From, Until time.Time }

// Availability lists periods in which so many hosts are free for the duration and the cleaning after it, the earliest
// first. Until is the end of the time in which the same hosts are free, without the cleaning. No period is part of
// another.
func (s Leases) Availability(ctx context.Context, q domain.FreeQuery) ([]domain.FreeSlot, error) {
	match, err := matchArgs(ctx, s.DB.pool, q.Want)
	if err != nil {
		return nil, err
	}
	gaps, err := queryAll[gap](ctx, s.DB.pool, gapsSQL,
		append(match, q.From, q.Until.Add(q.Cleaning), q.Duration+q.Cleaning)...)
	if err != nil {
		return nil, err
	}
	if q.Hosts < 1 || q.Limit < 1 {
		return nil, apperr.New(apperr.Internal, "internal error")
	}
	slots := sweep(gaps, q.Hosts, q.Duration+q.Cleaning, q.Limit)
	for n := range slots {
		slots[n].Until = slots[n].Until.Add(-q.Cleaning)
	}
	return slots, nil
}

// sweep finds the first periods in which so many gaps last for the time needed.
func sweep(gaps []gap, hosts int, need time.Duration, limit int) (slots []domain.FreeSlot) {
	slices.SortFunc(gaps, func(a, b gap) int { return a.From.Compare(b.From) })
	var ends []time.Time // of the gaps that are open, the first end first
	for n, g := range gaps {
		at, _ := slices.BinarySearchFunc(ends, g.Until, time.Time.Compare)
		ends = slices.Insert(ends, at, g.Until)
		if n+1 < len(gaps) && gaps[n+1].From.Equal(g.From) {
			continue
		}
		over, _ := slices.BinarySearchFunc(ends, g.From.Add(need), time.Time.Compare)
		ends = slices.Delete(ends, 0, over)
		if len(ends) < hosts {
			continue
		}
		until := ends[len(ends)-hosts]
		if len(slots) > 0 && !until.After(slots[len(slots)-1].Until) {
			continue // it is part of the one before
		}
		free, _ := slices.BinarySearchFunc(ends, until, time.Time.Compare)
		slots = append(slots, domain.FreeSlot{From: g.From, Until: until, Hosts: len(ends) - free})
		if len(slots) == limit {
			break
		}
	}
	return slots
}
