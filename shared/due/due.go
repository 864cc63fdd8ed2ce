// Package due is how work that is due is done. A queue is a table of rows with a due time and a claim; a runner claims
// rows that are due, works on each in a slot of its process while it keeps the claim, and follows what is due soon
// until its event ends. Each periodic function is a queue, a pass and a runner. The function clock reads from the same
// queues which functions have something due, and wakes these.
package due

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

const (
	// FollowFor is for how long an event begins what becomes due. The clock has the function woken for the rest.
	FollowFor = time.Minute
	// Soon is how near the next due time has to be for an event to wait for it. The clock wakes the function for what
	// is due later: a request that waits keeps a pod.
	Soon = 15 * time.Second
	// pause is the longest time between two reads of what is due.
	pause = 500 * time.Millisecond
	// shareOf is the part of the slots that rows of one share take at most: of one project, or of upkeep.
	shareOf = 4
)

// Claimed are rows that one claim has taken.
type Claimed[T any] struct {
	Claim domain.Claim
	At    time.Time // by the database's clock
	Rows  []Row[T]
}

// Row is a claimed row, with the shares of the slots that it takes from.
type Row[T any] struct {
	Value  T
	Shares []string
	// Renew prolongs the claim. It is domain.ErrFenced when another replica has the row.
	Renew func(ctx context.Context) error
}

// Store claims the rows of a queue.
type Store[T any] interface {
	// Claim claims at most so many due rows, first those that come first, without rows of the shares that are full.
	Claim(ctx context.Context, claimFor time.Duration, most int, full []string) (Claimed[T], error)
	// NextDue returns how long it is until a row may be claimed, if that is within a time; it may be negative.
	// nil = no row is due.
	NextDue(ctx context.Context, within time.Duration, full []string) (*time.Duration, error)
}

// Runner works on due rows. It belongs to a process: its slots bound the passes of all events together.
type Runner[T any] struct {
	Store    Store[T]
	ClaimFor time.Duration // how long a replica that has died keeps its rows
	Slots    int           // passes at a time
	// Work does a pass on a row, now by the database's clock, and releases the claim. Its context ends when another
	// replica has the row, and before the claim does when that cannot be renewed.
	Work func(ctx context.Context, claim domain.Claim, row T, now time.Time) error
	// Describe is what the log says of a row whose pass has failed: "lease", and attributes.
	Describe func(row T) (noun string, attrs []any)
	// Chores are done beside the passes; nil = none. One that fails is reported, and keeps no row waiting.
	Chores *Chores

	once   sync.Once
	events flow.Gate
	freed  chan struct{} // receives when a pass or a chore has ended

	mu      sync.Mutex
	running int
	shares  map[string]int // of the running passes
}

// Run works on what is due, and for FollowFor on what becomes due Soon. One event of a process claims at a time, and
// one more waits until it may; a third returns immediately, because the one that waits works after it. The next one
// begins while passes of this one are still running. The error is that of Postgres, and those of the chores.
func (r *Runner[T]) Run(ctx context.Context) error {
	r.once.Do(func() {
		r.events, r.freed, r.shares = flow.NewGate(), make(chan struct{}, 1), map[string]int{}
	})
	leave, err := r.events.Enter(ctx)
	if leave == nil {
		return err
	}
	begun := &event{freed: r.freed}
	err = r.follow(ctx, begun)
	leave() // before the last passes have ended: the next event need not wait for them
	if r.isWorking() || r.Chores.isRunning() {
		PlanRest(ctx)
	}
	begun.all.Wait()
	return errors.Join(append(begun.errs, err)...)
}

type restKey struct{}

// WithRest returns a context for the work of an event, which calls PlanRest.
func WithRest(ctx context.Context, plan func()) context.Context {
	return context.WithValue(ctx, restKey{}, plan)
}

// PlanRest is called by an event that begins nothing more while its last passes and chores go on: the clock has to wake
// the function for what becomes due meanwhile.
func PlanRest(ctx context.Context) {
	if plan, isSet := ctx.Value(restKey{}).(func()); isSet {
		plan()
	}
}

// event is what one event has begun, and waits for: if its process dies, it is sent again.
type event struct {
	freed chan<- struct{} // receives when a pass or a chore has ended
	all   sync.WaitGroup

	mu   sync.Mutex
	errs []error // of chores
}

// wake has the runner read immediately what is due.
func (e *event) wake() {
	select {
	case e.freed <- struct{}{}:
	default:
	}
}

func (r *Runner[T]) follow(ctx context.Context, e *event) error {
	chores, err := r.Chores.due(ctx)
	if err != nil {
		e.fail(err) // it keeps no row waiting
	}
	for _, c := range chores {
		r.Chores.start(ctx, e, c)
	}
	end := time.Now().Add(FollowFor)
	for {
		next, err := r.beginAll(ctx, e, min(time.Until(end), Soon))
		if err != nil {
			return err
		}
		isBusy, err := r.isBusy(ctx, e)
		if err != nil {
			return err
		}
		if next == nil && !isBusy {
			return nil
		}
		wait := pause
		if next != nil {
			wait = min(max(*next, time.Millisecond), pause)
		}
		if time.Now().Add(wait).After(end) || !flow.Await(ctx, wait, r.freed) {
			return nil
		}
	}
}

// isBusy reports whether passes or chores are running, and begins chores again that have more to do.
func (r *Runner[T]) isBusy(ctx context.Context, e *event) (isBusy bool, err error) {
	if isBusy, err = r.Chores.areRunning(ctx, e); err != nil {
		return false, err
	}
	return isBusy || r.isWorking(), nil
}

func (r *Runner[T]) isWorking() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running > 0
}

// beginAll begins passes while rows are due and slots are free. next is when the next row is due within left that is
// not begun; nil = none, or no slot is free for it.
func (r *Runner[T]) beginAll(ctx context.Context, e *event, left time.Duration) (next *time.Duration, err error) {
	for {
		most, full := r.room()
		if most == 0 {
			return nil, nil //nolint:nilnil // the next slot that becomes free wakes the loop
		}
		if next, err = r.Store.NextDue(ctx, left, full); err != nil || next == nil || *next > 0 {
			return next, err
		}
		got, err := r.Store.Claim(ctx, r.ClaimFor, most, full)
		if err != nil {
			return nil, err
		}
		for _, row := range got.Rows {
			r.begin(ctx, e, got, row)
		}
		if len(got.Rows) == 0 { // another replica was faster
			soon := pause
			return &soon, nil
		}
	}
}

// room returns how many rows may be claimed, so that those of no share are more than its part of the slots, and the
// shares that have theirs.
func (r *Runner[T]) room() (most int, full []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit, largest := max(r.Slots/shareOf, 1), 0
	full = []string{}
	for name, n := range r.shares {
		if n >= limit {
			full = append(full, name)
		} else {
			largest = max(largest, n)
		}
	}
	return min(r.Slots-r.running, limit-largest), full
}

func (r *Runner[T]) count(row Row[T], n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running += n
	for _, share := range row.Shares {
		if r.shares[share] += n; r.shares[share] == 0 {
			delete(r.shares, share)
		}
	}
}

// begin works on a row beside the others. One that cannot be stored stays claimed, and is worked on again when that
// ends.
func (r *Runner[T]) begin(ctx context.Context, e *event, got Claimed[T], row Row[T]) {
	r.count(row, 1)
	e.all.Go(func() {
		defer func() {
			r.count(row, -1)
			e.wake()
		}()
		kept, stop := Keep(ctx, got.Claim, r.ClaimFor, row.Renew)
		defer stop()
		err := r.Work(kept, got.Claim, row.Value, got.At)
		if err != nil && !domain.IsSuperseded(err) {
			noun, attrs := r.Describe(row.Value)
			slog.ErrorContext(ctx, noun+" pass failed", append(attrs, "error", err)...)
		}
	})
}

// Pass is the work on a claimed row, and how its outcome is stored.
type Pass struct {
	Limit time.Duration // bounds Work
	// Work does what can be done now.
	Work func(ctx context.Context) error
	// Save stores the outcome, and why Work has failed, and releases the claim.
	Save func(ctx context.Context, failure error) error
}

var (
	// errClaimEnds is why work stops when its claim could not be renewed.
	errClaimEnds = errors.New("the claim could not be renewed")
	errTooLong   = errors.New("the pass has reached its limit")
)

// Run does the work and saves its outcome, while the claim is kept: no two replicas do the same step at the same time.
// Work that reaches its limit is saved as failed. Work that ends with domain.ErrChanged has released the claim itself.
func (p Pass) Run(ctx context.Context) error {
	working, cancel := context.WithTimeoutCause(ctx, p.Limit, errTooLong)
	defer cancel()
	failure := p.Work(working)
	switch {
	case ctx.Err() != nil:
		return errors.Join(failure, context.Cause(ctx))
	case domain.IsSuperseded(failure):
		return failure
	case failure != nil && errors.Is(context.Cause(working), errTooLong):
		failure = apperr.Wrap(apperr.Timeout, failure, "the work did not end within %s", p.Limit)
	}
	err := p.Save(ctx, failure)
	if err != nil && ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return err
}

// Keep renews a claim until stop is called, also after ctx has ended: a call in flight may outlive it, and its result
// is written under the claim. The context that it returns ends with the cause domain.ErrFenced when another replica
// has the row, and before the claim does when that cannot be renewed.
func Keep(
	ctx context.Context, claim domain.Claim, claimFor time.Duration, renew func(ctx context.Context) error,
) (kept context.Context, stop func()) {
	kept, lose := context.WithCancelCause(ctx)
	renewing, end := context.WithCancel(context.WithoutCancel(ctx))
	valid := claimFor * 3 / 4 // of the time since it was requested; the rest is for what is in flight
	age := time.Duration(0)
	if !claim.Requested.IsZero() {
		age = time.Since(claim.Requested)
	}
	expiry := time.AfterFunc(valid-age, func() { lose(errClaimEnds) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for pause := claimFor/4 - age; flow.Sleep(renewing, pause); pause = claimFor / 4 {
			requested := time.Now()
			err := renew(renewing)
			if errors.Is(err, domain.ErrFenced) {
				lose(err)
				return
			}
			if err == nil && renewing.Err() == nil {
				expiry.Reset(valid - time.Since(requested))
			}
		}
	}()
	return kept, func() {
		end()
		<-ended
		expiry.Stop()
		lose(nil)
	}
}
