package postgres

import (
	"context"
	"math/bits"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

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

// assignment counts which need has how many hosts of which class.
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
// them. A class that is seen has been tried. It returns how many, 0 if no assignment has more.
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
