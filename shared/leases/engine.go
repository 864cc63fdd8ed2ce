// Package leases begins and ends leases: what a lease needs by status and time, the steps to it for instances and for
// reserved hosts, the pool of reservable hosts, and the replacement of hosts that are down. Each step may be repeated,
// so that a process that dies between any two calls loses nothing.
package leases

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// Engine works on leases.
type Engine struct {
	Store       Store
	Actions     Actions
	Instances   Instances
	Connections Connections
	Nodes       Nodes
	// Cloud opens a session of the service account; nil = no account, and hosts cannot be reserved.
	Cloud func(context.Context) (Cloud, error)
	// IsIsolated reports whether it was proven by then that only servers with its trait get onto a reservation's hosts;
	// nil = it is not known.
	IsIsolated func(ctx context.Context, then time.Time) (bool, error)
	// Inventory is what all passes share of OpenStack's lists; nil = each pass reads its own.
	Inventory *Inventory
	Forget    func(error) // drops the session after an error that is due to its token
	Wake      func(functions ...string)
	RetryFor  time.Duration // for how long a start is tried
	EndFor    time.Duration // for how long an end is tried before the lease is in error; 0 = without a limit
	ClaimFor  time.Duration
	// HealAfter is how long a host has to be down before another one takes its place.
	HealAfter time.Duration
}

// The pauses until a lease is worked on again.
const (
	movingPause = 1500 * time.Millisecond // while OpenStack or run-connections is at work for it
	healEvery   = time.Minute             // a lease with hosts
)

// pass is one visit of a claimed lease.
type pass struct {
	Engine

	claim domain.Claim
	lease *domain.Lease
	now   time.Time // at its begin, by the database's clock
	began time.Time // the same by the clock of this process
	nodes map[string]domain.Node
	cloud Cloud           // nil until it is needed
	lost  *domain.Problem // why nothing can be done in the user's name any more; nil = it can

	decision decision
	outcome
}

// outcome is what the steps of a pass have found. Each step adds to it, and end stores the lease by it.
type outcome struct {
	isMoving bool            // something is under way, and there is more to do soon
	failure  *domain.Problem // why a step has to be repeated
	final    *domain.Problem // why no repetition helps
	// reason is what its user should know of a pass that does not fail: what it waits for, or that an instance runs
	// although the lease has not begun.
	reason   *domain.Problem
	waitsFor time.Time // when to read again what the pass waits for; zero = its change makes the lease due
	degraded bool      // a host is down, and no other has taken its place
	left     []string  // the servers that the end of the lease could not take off its hosts yet
}

// passTime bounds the work of a pass. With the time of an event's waits (due.FollowFor) it is less than EVENT_TIMEOUT.
const passTime = 3 * time.Minute

// Run does for a claimed lease what it needs now, writes it back and releases its claim.
func (e Engine) Run(ctx context.Context, claim domain.Claim, lease domain.Lease, now time.Time) error {
	p := &pass{Engine: e, claim: claim, lease: &lease, now: now, began: time.Now()}
	return due.Pass{Limit: passTime, Work: p.work, Save: p.end}.Run(ctx)
}

// work decides what the lease needs, and does it.
func (p *pass) work(ctx context.Context) (err error) {
	if p.lost, err = p.lostDelegation(ctx); err != nil {
		return err
	}
	p.decision = decide(*p.lease, p.now, p.lost)
	if err := p.begin(ctx, p.decision); err != nil || p.decision.work == workNone {
		return err
	}
	return p.steps(ctx, p.decision.work)
}

// time is the time by the database's clock.
func (p *pass) time() time.Time { return p.now.Add(time.Since(p.began)) }

// lostDelegation returns why what was delegated to the lease has ended; nil = it has not. The problem of a lease that
// lost it before stays as it is.
func (p *pass) lostDelegation(ctx context.Context) (*domain.Problem, error) {
	l := p.lease
	if l.ConnectionID == uuid.Nil || !l.Status.IsOpen() {
		return nil, nil //nolint:nilnil // nothing is lost
	}
	status, reason, err := p.Connections.Status(ctx, l.ProjectID, l.ConnectionID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		reason = "its connection was deleted"
	case err != nil || status.IsOpen():
		return nil, err
	}
	if l.Problem != nil && l.Problem.Code == string(apperr.DelegationLost) {
		return l.Problem, nil
	}
	return lostBy(reason), nil
}

// begin stores the status that the time brings, with its event, before anything is done. A new status begins with no
// failed attempts.
func (p *pass) begin(ctx context.Context, d decision) error {
	l := p.lease
	if d.warn {
		l.WarnedAt = p.now
	}
	if d.status == l.Status {
		l.Problem = d.problem
		return nil
	}
	slog.InfoContext(ctx, "lease status changed", "lease_id", l.ID, "project_id", l.ProjectID, "status", d.status,
		"was", l.Status)
	l.Status, l.StartResult, l.Problem, l.Attempts = d.status, d.startResult, d.problem, 0
	if d.status != domain.LeaseError {
		l.Problem = nil
	}
	l.DueAt = p.now
	err := p.Store.SaveStep(ctx, p.claim, l, p.ClaimFor)
	p.Wake("deliver-events")
	return err
}

// steps does the steps of the work for each reservation. One that fails does not keep the others.
func (p *pass) steps(ctx context.Context, todo work) error {
	for _, kind := range []domain.ReservationType{ // a volume waits for its instance
		domain.InstanceReservation, domain.HostReservation, domain.VolumeReservation,
	} {
		for n := range p.lease.Reservations {
			r := &p.lease.Reservations[n]
			if r.Type != kind || r.Status == domain.ReservationEnded {
				continue
			}
			err := p.reservation(ctx, todo, r)
			if domain.IsSuperseded(err) || ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			p.record(ctx, r, err)
		}
	}
	return nil
}

func (p *pass) reservation(ctx context.Context, todo work, r *domain.Reservation) error {
	switch r.Type {
	case domain.InstanceReservation:
		return p.instance(ctx, todo, r)
	case domain.VolumeReservation:
		return p.volume(ctx, todo, r)
	}
	return p.hosts(ctx, todo, r)
}

// record remembers why a step failed.
func (p *pass) record(ctx context.Context, r *domain.Reservation, err error) {
	if err == nil {
		r.Problem = nil
		return
	}
	slog.WarnContext(ctx, "reservation step failed", "lease_id", p.lease.ID, "reservation_id", r.ID, "status",
		p.lease.Status, "error", err)
	if r.Problem = domain.ProblemOf(err); r.Type == domain.HostReservation {
		r.Problem = hostProblem(err)
	}
	if errors.Is(err, errWaits) {
		p.reason, p.isMoving = r.Problem, true
		return
	}
	if apperr.CodeOf(err) == apperr.DelegationLost {
		p.final = r.Problem
		return
	}
	p.failure = r.Problem
	if p.Forget != nil {
		p.Forget(err)
	}
}

// fail has the whole pass repeated after a pause.
func (p *pass) fail(ctx context.Context, failure error) {
	slog.WarnContext(ctx, "lease pass failed", "lease_id", p.lease.ID, "project_id", p.lease.ProjectID, "status",
		p.lease.Status, "error", failure)
	p.failure = domain.ProblemOf(failure)
}

// errWaits is in the chain when a step waits for another lease, which is no failure.
var errWaits = errors.New("waits for another lease")

// end stores the outcome, and when there is work again: pauses begin at the end of a pass.
func (p *pass) end(ctx context.Context, failure error) error {
	l, d := p.lease, p.decision
	if failure != nil {
		p.fail(ctx, failure)
	}
	before, wasDegraded := l.Status, l.Degraded
	l.DueAt = d.due
	if (d.work == workStart || d.work == workMaintain) && p.failure == nil {
		l.Degraded = p.degraded
	}
	switch {
	case p.failure != nil:
		p.retry(d)
	case p.isMoving:
		l.DueAt = p.time().Add(movingPause)
		hasFailed := l.Status == domain.LeaseError || l.Status != domain.LeaseEnding && l.Attempts > 0
		if p.reason != nil || !hasFailed { // else what has failed stays
			l.Problem = p.reason
		}
		if d.work == workFinish && l.Status == domain.LeaseEnding && p.isLate(p.EndFor) {
			p.failEnd()
		}
	case p.final != nil:
		l.Status, l.Problem = domain.LeaseError, p.final
		if d.work == workFinish {
			l.EndResult, l.DueAt = domain.StepFailed, time.Time{}
		} else {
			l.DueAt = l.EndsAt
		}
	case d.work == workFinish:
		return p.finish(ctx)
	case d.work != workNone && p.allEnded():
		l.Status, l.Problem, l.Attempts, l.DueAt = domain.LeaseEnding, nil, 0, p.now
	case d.work == workStart:
		l.Status, l.StartResult, l.StartedAt = domain.LeaseActive, domain.StepDone, p.now
		l.Problem, l.Attempts, l.DueAt = nil, 0, p.now
	case d.work != workNone:
		l.Problem, l.Attempts = p.reason, 0
	}
	if !p.waitsFor.IsZero() {
		l.DueAt = earlier(l.DueAt, p.waitsFor)
	}
	if d.work == workMaintain && p.failure == nil && p.hasHosts() && l.Status == domain.LeaseActive {
		l.DueAt = earlier(l.DueAt, p.time().Add(healEvery))
	}
	err := p.Store.Save(ctx, p.claim, l)
	if l.Status != before || l.Degraded != wasDegraded || d.warn {
		p.Wake("deliver-events")
	}
	return err
}

// retry has the step repeated after a pause. A start that has failed for too long is an error, and is tried less often
// from then on.
func (p *pass) retry(d decision) {
	l := p.lease
	l.Problem = p.failure
	l.Attempts++
	pause := pauseAfter(l.Attempts)
	if d.work == workFinish {
		if pause = endPause(l.Attempts); p.isLate(p.EndFor) {
			p.failEnd()
		}
	}
	switch {
	case l.Status == domain.LeaseError:
		pause = flow.Backoff(longestPause, longestErrorPause, max(l.Attempts, 1))
	case d.work == workStart && triedFor(l.Attempts) > p.RetryFor:
		l.Status, l.StartResult, l.Attempts, pause = domain.LeaseError, domain.StepFailed, 0, longestPause
	case d.work == workMaintain:
		pause = flow.Backoff(shortestPause, longestMaintainPause, l.Attempts)
	case p.isMoving:
		pause = min(pause, movingPause)
		l.Attempts-- // what moves is read more often than what fails is repeated
	}
	l.DueAt = p.time().Add(withJitter(pause))
	if d.work != workFinish {
		l.DueAt = earlier(l.DueAt, earlier(d.due, l.EndsAt))
	}
}

// finish ends the lease. One that never started, because its user deleted it, is cancelled.
func (p *pass) finish(ctx context.Context) error {
	l := p.lease
	l.Status, l.Problem, l.DueAt, l.EndedAt = domain.LeaseEnded, nil, time.Time{}, p.now
	l.EndResult, l.Degraded = domain.StepDone, false
	if l.StartResult == "" {
		l.Status = domain.LeaseCancelled
	}
	err := p.Store.Finish(ctx, p.claim, l)
	if err == nil {
		slog.InfoContext(ctx, "lease ended", "lease_id", l.ID, "project_id", l.ProjectID, "status", l.Status)
		p.Wake("deliver-events", "run-connections")
	}
	return err
}

// allEnded reports whether nothing is left to reserve: the lease has ended, or its instances were deleted, and it has
// no volumes that are used.
func (p *pass) allEnded() bool {
	return !slices.ContainsFunc(p.lease.Reservations, func(r domain.Reservation) bool {
		return r.Status != domain.ReservationEnded
	})
}

func (p *pass) hasHosts() bool {
	return slices.ContainsFunc(p.lease.Reservations, func(r domain.Reservation) bool {
		return r.Type == domain.HostReservation
	})
}

// neverStarted reports whether the user has deleted the lease before it was active: then on_end does not touch servers.
func (p *pass) neverStarted() bool { return p.lease.StartResult == "" }

// earlier is the earlier of two times; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Cloud is the part of OpenStack that leases need, with the service account.
type Cloud interface {
	actions.Cloud
	HostCloud
}

// Store stores leases. What it writes is fenced by a claim.
type Store interface {
	SaveStep(ctx context.Context, claim domain.Claim, lease *domain.Lease, claimFor time.Duration) error
	Save(ctx context.Context, claim domain.Claim, lease *domain.Lease) error
	Finish(ctx context.Context, claim domain.Claim, lease *domain.Lease) error
	Prepared(ctx context.Context, claim domain.Claim, r domain.Reservation, nodes ...string) error
	Released(ctx context.Context, claim domain.Claim, r domain.Reservation, nodes ...string) error
	Reallocate(ctx context.Context, claim domain.Claim, lease domain.Lease, r domain.Reservation, from string) (
		to string, ok bool, err error)
	HeldByOthers(ctx context.Context, r domain.Reservation, nodes ...string) ([]string, error)
}

// Actions stores what run-connections does with what was delegated to a lease.
type Actions interface {
	Create(ctx context.Context, action domain.DelegatedAction) (domain.DelegatedAction, error)
	Get(ctx context.Context, filter domain.Filter, id uuid.UUID) (domain.DelegatedAction, error)
	Abandon(ctx context.Context, action domain.DelegatedAction, problem *domain.Problem) error
}

// Instances reads instances, and stores what the service account does to them.
type Instances interface {
	actions.Instances
	Find(ctx context.Context, filter domain.Filter, ids []string) ([]domain.Instance, error)
}

// Connections reports whether what was delegated to a lease is still valid.
type Connections interface {
	Status(ctx context.Context, projectID string, id uuid.UUID) (status domain.ConnectionStatus, reason string,
		err error)
}

// Nodes stores the hosts that are or become reservable.
type Nodes interface {
	Pool(ctx context.Context) ([]domain.Node, error)
	PoolTrait(ctx context.Context) (string, error)
	SetPool(ctx context.Context, name string, from, to domain.PoolState, reason string) (ok bool, err error)
}

// work is what a lease needs now.
type work string

const (
	workNone     work = "none"     // until the due time
	workPrepare  work = "prepare"  // shelve its instances, which do not run before the start
	workStart    work = "start"    // unshelve its instances, attach their volumes, prepare its hosts
	workMaintain work = "maintain" // replace hosts that are down
	workFinish   work = "finish"   // do what on_end says, detach its volumes, return its hosts
)

// decision is what a lease needs at a time.
type decision struct {
	status      domain.LeaseStatus // which it gets first
	startResult domain.StepResult
	problem     *domain.Problem // why it has the status
	warn        bool            // the end is near, and no one was warned
	work        work
	due         time.Time // when there is work again, once this one is done; zero = never
}

// decide says what a lease needs now. lost is why nothing can be done in its user's name any more; nil = it can. It
// depends on nothing else, so that a lease that no replica worked on for hours gets where it should be.
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
		d.maintain(l, now)
	case now.Before(l.StartsAt):
		d.work, d.due = workPrepare, l.StartsAt
	default:
		d.status, d.work = domain.LeaseStarting, workStart
	}
	return d
}

// end ends a lease whose period has ended. One that has not started never will.
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

// maintain warns before the end, and has hosts reconciled.
func (d *decision) maintain(l domain.Lease, now time.Time) {
	d.work, d.due = workMaintain, l.EndsAt
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
	longestErrorPause    = 15 * time.Minute
	longestMaintainPause = 5 * time.Minute // while the hosts of an active lease cannot be reconciled
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
