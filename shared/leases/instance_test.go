package leases

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// fakeLease is a lease of one instance, with all that its engine needs. run-connections does an action when the test
// says so.
type fakeLease struct {
	Store
	Instances

	lease     domain.Lease
	instance  domain.Instance
	actions   map[uuid.UUID]domain.DelegatedAction
	requested []string // the actions, in order
	status    domain.ConnectionStatus
	crash     bool // after the next SaveStep
	now       time.Time
}

func newFakeLease(start time.Duration, state domain.InstanceState) *fakeLease {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	f := &fakeLease{
		now: now, actions: map[uuid.UUID]domain.DelegatedAction{}, status: domain.ConnectionActive,
		instance: domain.Instance{ID: uuid.New(), ServerID: uuid.NewString(), State: state},
	}
	f.lease = domain.Lease{
		ID: uuid.New(), Status: domain.LeasePending, StartsAt: now.Add(start), EndsAt: now.Add(start + time.Hour),
		OnEnd: domain.OnEndStop, ConnectionID: uuid.New(),
		Reservations: []domain.Reservation{{
			ID: uuid.New(), Type: domain.InstanceReservation, Status: domain.ReservationPending,
			InstanceID: f.instance.ID,
		}},
	}
	return f
}

func (f *fakeLease) Save(_ context.Context, _ domain.Claim, l *domain.Lease) error {
	f.lease = *l
	f.lease.Reservations = slices.Clone(l.Reservations)
	return nil
}

func (f *fakeLease) SaveStep(ctx context.Context, claim domain.Claim, l *domain.Lease, _ time.Duration) error {
	err := f.Save(ctx, claim, l)
	if f.crash {
		f.crash = false
		return domain.ErrFenced
	}
	return err
}

func (f *fakeLease) Finish(ctx context.Context, claim domain.Claim, l *domain.Lease) error {
	return f.Save(ctx, claim, l)
}

func (f *fakeLease) Find(context.Context, domain.Filter, []string) ([]domain.Instance, error) {
	return []domain.Instance{f.instance}, nil
}

func (f *fakeLease) Status(context.Context, string, uuid.UUID) (domain.ConnectionStatus, string, error) {
	return f.status, "", nil
}

func (f *fakeLease) Create(_ context.Context, a domain.DelegatedAction) (domain.DelegatedAction, error) {
	a.Status = domain.ActionRunning
	f.actions[a.ID] = a
	f.requested = append(f.requested, string(a.Request.Action))
	return a, nil
}

func (f *fakeLease) Abandon(_ context.Context, a domain.DelegatedAction, problem *domain.Problem) error {
	a.Status, a.Problem = domain.ActionFailed, problem
	f.actions[a.ID] = a
	return nil
}

func (f *fakeLease) Get(_ context.Context, _ domain.Filter, id uuid.UUID) (domain.DelegatedAction, error) {
	a, isKnown := f.actions[id]
	if !isKnown {
		return a, apperr.New(apperr.NotFound, "there is no action %s", id)
	}
	return a, nil
}

// run works on the lease once.
func (f *fakeLease) run(t *testing.T) {
	t.Helper()
	e := Engine{
		Store: f, Actions: f, Instances: f, Connections: f, Wake: func(...string) {}, ClaimFor: time.Minute,
		RetryFor: time.Minute, EndFor: time.Hour,
	}
	lease := f.lease
	lease.Reservations = slices.Clone(f.lease.Reservations)
	if err := e.Run(t.Context(), domain.NewClaim(), lease, f.now); err != nil {
		t.Log(err)
	}
}

// act does what was requested of run-connections.
func (f *fakeLease) act() {
	for id, a := range f.actions {
		if a.Status != domain.ActionRunning {
			continue
		}
		a.Status = domain.ActionDone
		f.actions[id] = a
		f.instance.State = map[domain.Action]domain.InstanceState{
			domain.Shelve: domain.InstanceShelved, domain.Start: domain.InstanceActive,
			domain.Stop: domain.InstanceStopped,
		}[a.Request.Action]
		if a.Request.Action == domain.Shelve {
			f.instance.RawStatus = "SHELVED_OFFLOADED"
		}
	}
}

// settle works on the lease until nothing more is requested.
func (f *fakeLease) settle(t *testing.T) {
	t.Helper()
	for range 5 {
		f.run(t)
		f.act()
	}
}

// end ends the lease at its user's request.
func (f *fakeLease) end(onEnd domain.OnEnd) {
	f.lease.Status, f.lease.OnEnd, f.lease.EndingSince = domain.LeaseEnding, onEnd, f.now
}

// want checks what was done, and where the lease and the instance are.
func (f *fakeLease) want(t *testing.T, requested string, status domain.LeaseStatus, state domain.InstanceState) {
	t.Helper()
	got := strings.Join(f.requested, " ")
	if got != requested || f.lease.Status != status || f.instance.State != state {
		t.Errorf("requested %q, the lease is %s and the instance %s; want %q, %s, %s", got, f.lease.Status,
			f.instance.State, requested, status, state)
	}
}

// TestCancelledLease leaves its instance as it was before: one that ran is started again, at whatever point the lease
// was cancelled or the process died.
func TestCancelledLease(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(f *fakeLease){
		"before anything":    func(*fakeLease) {},
		"while it shelves":   func(f *fakeLease) { f.run(t) },
		"when it is shelved": func(f *fakeLease) { f.settle(t) },
		"after a crash before the action": func(f *fakeLease) {
			f.crash = true
			f.run(t)
			f.settle(t)
		},
		"after the start was due": func(f *fakeLease) {
			f.settle(t)
			f.now = f.lease.StartsAt.Add(time.Second)
		},
	} {
		f := newFakeLease(time.Hour, domain.InstanceActive)
		before(f)
		f.end(domain.OnEndNone)
		f.settle(t)
		requested := "shelve start"
		if name == "before anything" {
			requested = ""
		}
		t.Log(name)
		f.want(t, requested, domain.LeaseCancelled, domain.InstanceActive)
	}
	f := newFakeLease(time.Hour, domain.InstanceStopped)
	f.settle(t)
	f.end(domain.OnEndNone)
	f.settle(t)
	f.want(t, "shelve", domain.LeaseCancelled, domain.InstanceShelved) // it did not run
}

// TestPrepareWaits until what Nova or an order does to the instance is done: only then it shows whether it ran.
func TestPrepareWaits(t *testing.T) {
	t.Parallel()
	for _, state := range []domain.InstanceState{
		domain.InstanceUpdating, domain.InstanceBuilding, domain.InstanceUnknown,
	} {
		f := newFakeLease(time.Hour, state)
		f.settle(t)
		f.want(t, "", domain.LeasePending, state)
		if f.lease.DueAt.After(f.now.Add(time.Minute)) {
			t.Errorf("%s: the lease is due at %s", state, f.lease.DueAt)
		}
		f.instance.State = domain.InstanceActive // it was being unshelved
		f.settle(t)
		f.want(t, "shelve", domain.LeasePending, domain.InstanceShelved)
		f.end(domain.OnEndNone)
		f.settle(t)
		f.want(t, "shelve start", domain.LeaseCancelled, domain.InstanceActive)
	}
}

// TestMixedLeaseIsCancelled: with hosts the lease keeps its on_end when it is cancelled. Its instance is started again,
// whatever the time of the pass.
func TestMixedLeaseIsCancelled(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{0, time.Minute} {
		f := newFakeLease(time.Second, domain.InstanceActive)
		f.lease.Reservations = append(f.lease.Reservations, domain.Reservation{
			ID: uuid.New(), Type: domain.HostReservation, Status: domain.ReservationPending,
		})
		f.settle(t)
		f.end(domain.OnEndShelve)
		f.now = f.now.Add(late)
		f.settle(t)
		f.want(t, "shelve start", domain.LeaseCancelled, domain.InstanceActive)
	}
}

// TestEnforceEachTime: an instance that is started before the start again and again is shelved each time, and no time
// counts as a failure.
func TestEnforceEachTime(t *testing.T) {
	t.Parallel()
	f := newFakeLease(time.Hour, domain.InstanceActive)
	f.lease.Enforce = true
	f.settle(t)
	for n := range 4 {
		f.instance.State, f.instance.RawStatus = domain.InstanceActive, "ACTIVE"
		f.run(t)
		if len(f.requested) != n+2 || f.lease.Problem != nil || f.lease.Attempts != 0 {
			t.Errorf("time %d: requested %v, the lease is %+v", n, f.requested, f.lease)
		}
		f.act()
		f.settle(t)
	}
}

// TestEndOfPaused: Nova stops no server that is paused or suspended. A lease that stops its server leaves such a one as
// it is, because it does not run.
func TestEndOfPaused(t *testing.T) {
	t.Parallel()
	for _, state := range []domain.InstanceState{domain.InstancePaused, domain.InstanceSuspended} {
		f := newFakeLease(0, domain.InstanceActive)
		f.settle(t)
		f.instance.State = state
		f.end(domain.OnEndStop)
		f.settle(t)
		f.want(t, "", domain.LeaseEnded, state)
	}
}

// TestEndPausesGrow: an end that fails is tried less and less often, and is in error after a time. It goes on from
// there.
func TestEndPausesGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeLease(0, domain.InstanceActive)
		f.settle(t)
		f.end(domain.OnEndStop)
		began := f.now
		var statuses []domain.LeaseStatus
		shortest := map[domain.LeaseStatus]time.Duration{
			domain.LeaseEnding: shortestPause, domain.LeaseError: longestPause,
		}
		pauses := map[domain.LeaseStatus][]time.Duration{}
		for f.now.Before(began.Add(24 * time.Hour)) {
			f.run(t)
			for id, a := range f.actions {
				if a.Status == domain.ActionRunning {
					a.Status = domain.ActionFailed
					a.Problem = &domain.Problem{Code: "conflict", Detail: "it is in ERROR"}
					f.actions[id] = a
				}
			}
			if n := len(statuses); n == 0 || statuses[n-1] != f.lease.Status {
				statuses = append(statuses, f.lease.Status)
			}
			if f.lease.DueAt.IsZero() {
				t.Fatalf("it is never due: %+v", f.lease)
			}
			if pause := f.lease.DueAt.Sub(f.now); f.lease.Attempts > len(pauses[f.lease.Status]) {
				pauses[f.lease.Status] = append(pauses[f.lease.Status], pause)
			}
			f.now = f.lease.DueAt
		}
		for status := range shortest {
			all := pauses[status]
			for n, pause := range all {
				most := flow.Backoff(shortest[status], longestErrorPause, n+1)
				if pause < most*3/4 || pause > most {
					t.Errorf("%s: the pause %d is %s, want about %s", status, n+1, pause, most)
				}
			}
			if n := len(all); n < 8 || all[n-1] < longestErrorPause*3/4 {
				t.Errorf("%s: the pauses are %v, which do not grow to %s", status, all, longestErrorPause)
			}
		}
		if len(f.requested) > 150 || f.lease.EndResult != domain.StepFailed ||
			!slices.Equal(statuses, []domain.LeaseStatus{domain.LeaseEnding, domain.LeaseError}) {
			t.Errorf("%d actions, the statuses %v, %+v", len(f.requested), statuses, f.lease)
		}
		f.settle(t)
		f.want(t, strings.Join(f.requested, " "), domain.LeaseEnded, domain.InstanceStopped)
	})
}

// TestBusyInstance: a lease whose instance Nova keeps in a moving state says so, before its start and while it starts,
// and no longer when Nova is done.
func TestBusyInstance(t *testing.T) {
	t.Parallel()
	for _, start := range []time.Duration{time.Hour, -time.Minute} {
		f := newFakeLease(start, domain.InstanceUpdating)
		f.instance.RawStatus, f.instance.UpdatedAt = "MIGRATING", f.now
		for range 3 {
			f.run(t)
			if f.lease.Problem != nil {
				t.Errorf("it has just begun: %+v", f.lease.Problem)
			}
		}
		f.now = f.now.Add(longAction + time.Second)
		f.run(t)
		p := f.lease.Problem
		if p == nil || p.Code != "conflict" || !strings.Contains(p.Detail, "is MIGRATING since 2026-01") {
			t.Errorf("its reason is %+v", p)
		}
		f.instance.State, f.instance.RawStatus = domain.InstanceActive, "ACTIVE"
		f.run(t)
		if f.lease.Problem != nil {
			t.Errorf("it is done: %+v", f.lease.Problem)
		}
		f.settle(t)
		if f.lease.Problem != nil {
			t.Errorf("at last: %+v", f.lease.Problem)
		}
	}
}

// TestActiveLeaseEndsWithNone leaves its instance running, also when what was delegated is lost.
func TestActiveLeaseEndsWithNone(t *testing.T) {
	t.Parallel()
	for _, status := range []domain.ConnectionStatus{domain.ConnectionActive, domain.ConnectionLost} {
		f := newFakeLease(0, domain.InstanceActive)
		f.settle(t)
		f.status = status
		f.end(domain.OnEndNone)
		f.settle(t)
		f.want(t, "", domain.LeaseEnded, domain.InstanceActive)
	}
}

// TestLaterLease leaves the instance to the lease before: it neither shelves nor starts it, and when it is cancelled it
// does nothing.
func TestLaterLease(t *testing.T) {
	t.Parallel()
	f := newFakeLease(time.Hour, domain.InstanceActive)
	f.lease.Reservations[0].WaitsFor = uuid.New()
	f.settle(t)
	f.want(t, "", domain.LeasePending, domain.InstanceActive)
	f.now = f.lease.StartsAt
	f.settle(t)
	f.want(t, "", domain.LeaseStarting, domain.InstanceActive)
	if f.lease.Problem == nil || f.lease.DueAt.After(f.now.Add(time.Minute)) {
		t.Errorf("it waits, and says %+v", f.lease)
	}
	cancelled := f.lease
	f.end(domain.OnEndShelve)
	f.settle(t)
	f.want(t, "", domain.LeaseCancelled, domain.InstanceActive)

	f.lease, f.instance.State = cancelled, domain.InstanceShelved
	f.lease.Reservations[0].WaitsFor, f.lease.Reservations[0].Status = uuid.Nil, domain.ReservationPending
	f.settle(t)
	f.want(t, "start", domain.LeaseActive, domain.InstanceActive)
}

// TestDrift: an instance that its owner starts before the lease begins is reported, and shelved again only with
// Enforce.
func TestDrift(t *testing.T) {
	t.Parallel()
	for _, enforce := range []bool{false, true} {
		f := newFakeLease(time.Hour, domain.InstanceActive)
		f.lease.Enforce = enforce
		f.settle(t)
		f.want(t, "shelve", domain.LeasePending, domain.InstanceShelved)
		f.instance.State, f.instance.RawStatus = domain.InstanceActive, "ACTIVE"
		f.settle(t)
		if enforce {
			f.want(t, "shelve shelve", domain.LeasePending, domain.InstanceShelved)
		} else {
			f.want(t, "shelve", domain.LeasePending, domain.InstanceActive)
		}
		if p := f.lease.Problem; enforce != (p == nil) || p != nil && p.Code != domain.DriftCode {
			t.Errorf("with enforce %t its problem is %+v", enforce, p)
		}
		f.instance.State, f.instance.RawStatus = domain.InstanceShelved, "SHELVED_OFFLOADED"
		f.settle(t)
		if f.lease.Problem != nil {
			t.Errorf("shelved by its owner, its problem is %+v", f.lease.Problem)
		}
	}
}

// TestEndAbandonsStart: the end of a lease does not wait for a start that run-connections still tries.
func TestEndAbandonsStart(t *testing.T) {
	t.Parallel()
	f := newFakeLease(0, domain.InstanceStopped)
	f.run(t)
	f.want(t, "start", domain.LeaseStarting, domain.InstanceStopped)
	f.end(domain.OnEndShelve)
	f.run(t)
	f.settle(t)
	f.want(t, "start shelve", domain.LeaseCancelled, domain.InstanceShelved)
}

// TestLostReason: a lease in error of another kind gets the reason of its connection once, and requests nothing more.
func TestLostReason(t *testing.T) {
	t.Parallel()
	f := newFakeLease(0, domain.InstanceStopped)
	f.lease.Status, f.lease.StartResult = domain.LeaseError, domain.StepFailed
	f.lease.Problem, f.status = &domain.Problem{Code: string(apperr.Conflict)}, domain.ConnectionExpired
	for range 2 {
		f.settle(t)
		f.want(t, "", domain.LeaseError, domain.InstanceStopped)
		if p := f.lease.Problem; p.Code != string(apperr.DelegationLost) || !f.lease.DueAt.Equal(f.lease.EndsAt) {
			t.Errorf("its problem is %+v, it is due at %s", p, f.lease.DueAt)
		}
	}
}

// TestPassAtItsLimit: a pass that reaches its time limit, because a call hangs, is stored with its reason and counted.
// Its pauses grow, and begin at its end. So it does whatever the lease needs.
func TestPassAtItsLimit(t *testing.T) {
	t.Parallel()
	for status, longest := range map[domain.LeaseStatus]time.Duration{
		domain.LeaseStarting: longestPause, domain.LeaseActive: longestMaintainPause,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeLease(-time.Hour, domain.InstanceActive)
			f.lease.Status, f.lease.StartResult, f.lease.EndsAt = status, domain.StepDone, f.now.AddDate(0, 0, 1)
			f.lease.ConnectionID = uuid.Nil
			f.lease.Reservations[0] = domain.Reservation{
				ID: uuid.New(), Type: domain.HostReservation, Status: domain.ReservationActive, AggregateID: 1,
			}
			engine := Engine{
				Store: f, Wake: func(...string) {}, ClaimFor: time.Minute, RetryFor: time.Hour,
				Cloud: func(ctx context.Context) (Cloud, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				},
			}
			for attempt := 1; attempt <= 10; attempt++ {
				lease := f.lease
				lease.Reservations = slices.Clone(f.lease.Reservations)
				if err := engine.Run(t.Context(), domain.NewClaim(), lease, f.now); err != nil {
					t.Fatal(err)
				}
				pause := f.lease.DueAt.Sub(f.now.Add(passTime))
				most := flow.Backoff(shortestPause, longest, attempt)
				if f.lease.Attempts != attempt || f.lease.Problem == nil || f.lease.Problem.Code != "timeout" ||
					pause < most*3/4 || pause > most {
					t.Errorf("%s, attempt %d: %d attempts, %+v, a pause of %s, want at most %s", status, attempt,
						f.lease.Attempts, f.lease.Problem, pause, most)
				}
			}
		})
	}
}
