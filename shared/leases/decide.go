package leases

import (
	"math/rand/v2"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// work is what a lease needs now.
type work string

const (
	workNone    work = "none"    // until the due time
	workPrepare work = "prepare" // shelve its instances, which do not run before the start
	workStart   work = "start"   // unshelve its instances, prepare its hosts
	workKeep    work = "keep"    // replace hosts that are down
	workFinish  work = "finish"  // do what on_end says, return its hosts
)

// decision is what a lease needs at a time.
type decision struct {
	status      domain.LeaseStatus // which it gets first
	startResult domain.StepResult
	problem     *domain.Problem // why it has the status
	warn        bool            // the end is near, and nobody has been warned
	work        work
	due         time.Time // when there is work again, once this one is done; zero = never
}

// decide says what a lease needs now. lost is why nothing can be done in its user's name any more; nil = it can. It
// depends on nothing else, so that a lease that nobody worked on for hours is brought to where it should be.
func decide(l domain.Lease, now time.Time, lost *domain.Problem) decision {
	d := decision{status: l.Status, startResult: l.StartResult, problem: l.Problem, work: workNone}
	isOver := !now.Before(l.EndsAt)
	switch {
	case !l.Status.IsOpen():
	case l.Status == domain.LeaseEnding:
		d.work = workFinish
	case l.Status == domain.LeaseError && l.EndResult != "": // its end has failed, and is tried less often
		d.work = workFinish
	case isOver:
		d.end(l)
	case lost != nil:
		d.status, d.problem, d.due = domain.LeaseError, lost, l.EndsAt
	case l.Status == domain.LeaseError && l.StartResult == domain.StepFailed:
		d.work = workStart
	case l.Status == domain.LeaseError:
		d.due = l.EndsAt
	case l.Status == domain.LeaseActive:
		d.keep(l, now)
	case now.Before(l.StartsAt):
		d.work, d.due = workPrepare, l.StartsAt
	default:
		d.status, d.work = domain.LeaseStarting, workStart
	}
	return d
}

// end ends a lease whose period is over. One that has not started never will.
func (d *decision) end(l domain.Lease) {
	d.status, d.work = domain.LeaseEnding, workFinish
	if l.StartResult != "" {
		return
	}
	d.startResult = domain.StepFailed
	if l.Status == domain.LeasePending {
		d.startResult = domain.StepSkipped
	}
}

// keep warns before the end, and has hosts looked after.
func (d *decision) keep(l domain.Lease, now time.Time) {
	d.work, d.due = workKeep, l.EndsAt
	if l.BeforeEnd == 0 || !l.WarnedAt.IsZero() {
		return
	}
	if at := l.EndsAt.Add(-l.BeforeEnd); now.Before(at) {
		d.due = at
	} else {
		d.warn = true
	}
}

// lostBy is the problem of a lease that cannot be worked on in its user's name any more.
func lostBy(reason string) *domain.Problem {
	return &domain.Problem{
		Code: string(apperr.DelegationLost), Detail: "what was delegated to the lease has ended: " + reason,
	}
}

const (
	shortestPause = 5 * time.Second // between two attempts at a step that fails
	longestPause  = time.Minute
	// A lease in error is tried until its end, after pauses that grow from longestPause to this.
	longestErrorPause = 15 * time.Minute
	longestKeepPause  = 5 * time.Minute // while the hosts of an active lease cannot be looked after
)

// pauseAfter is the pause after so many failed attempts, 1 or more.
func pauseAfter(attempts int) time.Duration {
	return flow.Backoff(shortestPause, longestPause, attempts)
}

// withJitter shortens a pause by up to a quarter, so that what failed together is not tried together.
func withJitter(pause time.Duration) time.Duration {
	return pause - rand.N(pause/4+1) //nolint:gosec // jitter needs no secrecy
}

// triedFor is the time that so many failed attempts took, without the work itself. A service that sleeps between two
// attempts does not use up the time.
func triedFor(attempts int) (sum time.Duration) {
	for n := range attempts {
		sum += pauseAfter(n + 1)
	}
	return sum
}
