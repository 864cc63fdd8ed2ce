package postgres

import (
	"context"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// bookAttempts bounds how often a booking plans again because others took a host that it had planned.
const bookAttempts = 100

// booking is what reservations of hosts need, from a time on.
type booking struct {
	projectID string
	from      time.Time
	end       func(start time.Time) time.Time // with the cleaning; a later start has no earlier end
	needs     []need
}

// need is what a reservation of hosts needs.
type need struct {
	reservation uuid.UUID
	n           int // of the lease's reservations
	want        domain.HostRequest
}

// bookingOf is what the host reservations of a lease need.
func bookingOf(lease domain.Lease, rules domain.LeaseRules) booking {
	b := booking{
		projectID: lease.ProjectID, from: lease.StartsAt,
		end: func(start time.Time) time.Time { return lease.EndFrom(start).Add(rules.Cleaning) },
	}
	for n, r := range lease.Reservations {
		if r.Type == domain.HostReservation {
			b.needs = append(b.needs, need{reservation: r.ID, n: n, want: *r.Request})
		}
	}
	return b
}

// bookHosts gives all host reservations of a lease their hosts, or returns a domain.FreeError with the time at which
// the whole lease fits.
func bookHosts(ctx context.Context, tx pgx.Tx, lease domain.Lease, rules domain.LeaseRules) error {
	b := bookingOf(lease, rules)
	for range bookAttempts {
		planned, isTaken, err := b.book(ctx, tx)
		if err != nil || isTaken {
			return err
		}
		if err := planned.refusal(b, lease); err != nil {
			return err
		}
	}
	return apperr.New(apperr.Conflict, "others book the same hosts at the same time: repeat the request")
}

// planHosts gives the reservations of a lease the hosts that bookHosts would give them, and stores nothing.
func planHosts(
	ctx context.Context, tx pgx.Tx, lease domain.Lease, rules domain.LeaseRules,
) (planned domain.Lease, err error) {
	b := bookingOf(lease, rules)
	if len(b.needs) == 0 {
		return lease, nil
	}
	p, err := b.plan(ctx, tx)
	if err == nil {
		err = p.refusal(b, lease)
	}
	if err != nil {
		return lease, err
	}
	lease.Reservations = slices.Clone(lease.Reservations)
	for k, names := range p.hosts {
		r := &lease.Reservations[b.needs[k].n]
		for _, name := range names {
			r.Allocations = append(r.Allocations, domain.Allocation{
				ProjectID: lease.ProjectID, ReservationID: r.ID, Node: name, From: b.from, Until: b.end(b.from),
			})
		}
	}
	return lease, nil
}

// book takes hosts for all of its reservations, or returns the plan that failed because they are not free, or because
// others were faster.
func (b booking) book(ctx context.Context, tx pgx.Tx) (failed plan, isTaken bool, err error) {
	switch len(b.needs) {
	case 0:
		return failed, true, nil
	case 1: // without reading when all the hosts are free
		first := b.needs[0]
		match, err := matchArgs(ctx, tx, first.want, b.projectID, first.reservation)
		if err != nil {
			return failed, false, err
		}
		taken, err := takeHosts(ctx, tx, first.want.Max, allocateSQL,
			append(match, b.from, b.end(b.from), first.want.Max)...)
		if err != nil || taken != nil {
			return plan{hosts: [][]string{taken}}, taken != nil, err
		}
	}
	p, err := b.plan(ctx, tx)
	if err != nil || !p.fits(b) {
		return p, false, err
	}
	var names []string
	var reservations []uuid.UUID
	for k, hosts := range p.hosts {
		names = append(names, hosts...)
		reservations = append(reservations, slices.Repeat([]uuid.UUID{b.needs[k].reservation}, len(hosts))...)
	}
	taken, err := takeHosts(ctx, tx, len(names), takePlannedSQL, b.projectID, names, reservations, b.from,
		b.end(b.from))
	return p, taken != nil, err
}

// refusal is the error for the user when the lease does not fit at its start; nil = it fits.
func (p plan) refusal(b booking, lease domain.Lease) error {
	if p.fits(b) {
		return nil
	}
	missing := b.needs[p.missing]
	field, matching := fmt.Sprintf("reservations[%d].min", missing.n), p.matching[p.missing]
	var detail string
	code := apperr.Unprocessable
	switch {
	case matching < missing.want.Min:
		detail = fmt.Sprintf("is %d, but the number of reservable hosts that match is %d", missing.want.Min, matching)
	case p.never:
		detail = fmt.Sprintf("is %d, but the reservable hosts that match (%d) are too few for it and the other "+
			"reservations of the lease", missing.want.Min, matching)
	default:
		code = apperr.Conflict
		detail = fmt.Sprintf("is %d, but too few of the hosts that match (%d) are free, up and not cordoned for the "+
			"whole period", missing.want.Min, matching)
	}
	refusal := apperr.InvalidField(field, detail)
	refusal.Code = code
	free := &domain.FreeError{Refusal: refusal, FreeAt: p.at}
	if !p.at.IsZero() {
		free.FreeEnd = lease.EndFrom(p.at)
	}
	return free
}

// plannedStarts bounds the starts for which a plan assigns hosts. It only counts those at which enough hosts are free
// for each reservation alone.
const plannedStarts = 1000

// plan is when all reservations of a booking get hosts, and which. It is computed from one read of the hosts' times.
type plan struct {
	at       time.Time  // the first time at which all fit; zero = none is known
	hosts    [][]string // of each need, when all fit at the time of the booking
	matching []int      // the number of hosts that match each need, free or not
	missing  int        // the need that gets too few hosts at the time of the booking
	never    bool       // even if all hosts were free
}

// fits reports whether all reservations get hosts at the time of the booking.
func (p plan) fits(b booking) bool { return p.at.Equal(b.from) }

// plan reads the hosts' times and finds the first time at which all reservations get their hosts.
func (b booking) plan(ctx context.Context, tx pgx.Tx) (p plan, err error) {
	fits := map[string]uint64{} // the needs that each host matches
	for k, need := range b.needs {
		match, err := matchArgs(ctx, tx, need.want, b.projectID, need.reservation)
		if err != nil {
			return p, err
		}
		names, err := queryColumn[string](ctx, tx, matchingSQL, match...)
		if err != nil {
			return p, err
		}
		for _, name := range names {
			fits[name] |= 1 << k
		}
		p.matching = append(p.matching, len(names))
	}
	names := make([]string, 0, len(fits))
	for name := range fits {
		names = append(names, name)
	}
	hosts, err := readTimes(ctx, tx, names, b.from, farAway)
	if err != nil {
		return p, err
	}
	for n := range hosts {
		hosts[n].fits = fits[hosts[n].Name]
	}
	b.search(hosts, &p)
	return p, nil
}

// search fills in the plan from the times of the hosts, the best host first.
func (b booking) search(hosts []hostTimes, p *plan) {
	classes := classesOf(hosts)
	all := make([]gap, len(hosts))
	for n := range hosts {
		all[n].host = n
	}
	if _, p.missing, p.never = b.assign(hosts, classes, all); p.never {
		return
	}
	tried := 0
	for at, open := range starts(gapsOf(hosts, b.end(b.from).Sub(b.from), farAway), b.end) {
		if at.Equal(b.from) {
			var isShort bool
			if p.hosts, p.missing, isShort = b.assign(hosts, classes, open); !isShort {
				p.at = at
				return
			}
			continue
		}
		if !b.isEnough(hosts, open) {
			continue
		}
		if _, _, isShort := b.assign(hosts, classes, open); !isShort {
			p.at = at
			return
		}
		if tried++; tried == plannedStarts {
			return
		}
	}
}

// isEnough reports whether enough hosts are free for each reservation, if it were alone, and for all together.
func (b booking) isEnough(hosts []hostTimes, open []gap) bool {
	total := 0
	for k, need := range b.needs {
		matching := 0
		for _, g := range open {
			matching += int(hosts[g.host].fits >> k & 1)
		}
		if total += need.want.Min; matching < need.want.Min {
			return false
		}
	}
	return total <= len(open)
}

// classesOf are the sets of needs that hosts match: those that fit the fewest needs first, so that the others remain
// for other needs, then those of the best host.
func classesOf(hosts []hostTimes) (classes []uint64) {
	for _, h := range hosts {
		if !slices.Contains(classes, h.fits) {
			classes = append(classes, h.fits)
		}
	}
	slices.SortStableFunc(classes, func(a, b uint64) int { return bits.OnesCount64(a) - bits.OnesCount64(b) })
	return classes
}

// assign gives the hosts of the gaps to all needs: to each its min, then up to its max in their order. isShort reports
// that this is impossible, and missing is the need that gets fewer than its min then.
func (b booking) assign(
	hosts []hostTimes, classes []uint64, open []gap,
) (given [][]string, missing int, isShort bool) {
	free := make([][]int, len(classes))
	for _, g := range open {
		c := slices.Index(classes, hosts[g.host].fits)
		free[c] = append(free[c], g.host)
	}
	a := assignment{classes: classes, spare: make([]int, len(classes)), got: make([][]int, len(b.needs))}
	for c, members := range free {
		slices.Sort(members)
		a.spare[c] = len(members)
	}
	for k := range b.needs {
		a.got[k] = make([]int, len(classes))
	}
	for k, need := range b.needs {
		if !a.add(k, need.want.Min) {
			return nil, k, true
		}
	}
	for k, need := range b.needs {
		a.add(k, need.want.Max-need.want.Min)
	}
	given = make([][]string, len(b.needs))
	for k := range b.needs {
		for c, count := range a.got[k] {
			for _, n := range free[c][:count] {
				given[k] = append(given[k], hosts[n].Name)
			}
			free[c] = free[c][count:]
		}
	}
	return given, 0, false
}

// assignment counts the hosts of each class that each need has.
type assignment struct {
	classes []uint64
	spare   []int   // of each class
	got     [][]int // by need and class
}

// add gives a need so many more hosts, or as many as there are. isDone reports that it got all.
func (a *assignment) add(k, count int) (isDone bool) {
	for count > 0 {
		placed := a.place(k, count, make([]bool, len(a.classes)))
		if placed == 0 {
			return false
		}
		count -= placed
	}
	return true
}

// place gives a need some more hosts, at most so many: spare ones, or else those of another need that gets others for
// them. A class that is marked has been tried. It returns how many, 0 if no assignment has more.
func (a *assignment) place(k, most int, seen []bool) int {
	for c, class := range a.classes {
		if n := min(most, a.spare[c]); n > 0 && class>>k&1 == 1 {
			a.spare[c] -= n
			a.got[k][c] += n
			return n
		}
	}
	for c, class := range a.classes {
		if seen[c] || class>>k&1 == 0 {
			continue
		}
		seen[c] = true
		for other := range a.got {
			if other == k || a.got[other][c] == 0 {
				continue
			}
			if n := a.place(other, min(most, a.got[other][c]), seen); n > 0 {
				a.got[other][c] -= n
				a.got[k][c] += n
				return n
			}
		}
	}
	return 0
}

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
	match, err := matchArgs(ctx, s.DB.pool, q.Request, "", uuid.Nil)
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
