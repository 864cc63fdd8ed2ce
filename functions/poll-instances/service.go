package pollinstances

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// newService has all stores of the database.
func newService(db *postgres.DB, login func(context.Context) (session, error), wake func()) *service {
	return &service{
		events: flow.NewGate(), cloud: newSessions(login), db: db, jobs: postgres.Jobs{DB: db},
		chores: &due.Chores{Jobs: postgres.Jobs{DB: db}, Kind: jobKind, All: []*due.Chore{{Name: postgres.PollJob}}},
		polls:  postgres.Polls{DB: db}, instances: postgres.Instances{DB: db}, orders: postgres.Orders{DB: db},
		wake: wake,
	}
}

type service struct {
	cloud     *sessions
	db        *postgres.DB
	jobs      postgres.Jobs
	chores    *due.Chores // the job that says when the next poll is due; several replicas may poll, so no one claims it
	polls     postgres.Polls
	instances postgres.Instances
	orders    orders.Store
	wake      func() // wakes the function that delivers events

	full         time.Duration
	unknownAfter time.Duration
	followFor    time.Duration
	pause        time.Duration

	events   flow.Gate // those of this process
	each     refusals  // of "": Nova does not let the account see the whole cloud, so each project is read separately
	readOnly refusals  // of projects in which the account may not act
}

const (
	jobKind = "poll-instances"
	jobKey  = "all"
	second  = 8 // of the minute, when a poll is due: no other function that calls OpenStack has the same
	// A replica that dies keeps the others waiting for this long; one that lives says so in time.
	claimFor = 20 * time.Second

	longestPause = 5 * time.Second
	longRound    = 10 * time.Second
	// Nova may be changing an instance for days, such as by a resize that no one confirms. Only instances that changed
	// within this time are followed closely.
	movingFor = 10 * time.Minute
)

// event is the work that one event does.
type event struct {
	*service
	claim domain.Claim // on all that it reads
	held  held         // the lists that it has claimed
	began time.Time    // by the database's clock
	logs  atomic.Int32 // how many action logs it has read

	leastWait time.Duration // an attempt with less time than this says nothing of Nova
}

// Poll reads what changed, and repeats that while Nova is changing instances. Other replicas may do so at the same
// time: each project is claimed by one. In one process one event works at a time, and one waits: it reads what was
// written after the other one had.
func (s *service) Poll(ctx context.Context) error {
	if err := s.chores.Register(ctx); err != nil {
		return err
	}
	if err := s.jobs.Schedule(ctx, jobKind, postgres.PollJob, due.Next{Second: second}); err != nil {
		return err
	}
	leave, err := s.events.Enter(ctx)
	if leave == nil {
		return err
	}
	defer leave()
	began, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	e := &event{service: s, claim: domain.NewClaim(), began: began, leastWait: leastWait}
	if deadline, ok := ctx.Deadline(); ok {
		e.leastWait = min(leastWait, time.Until(deadline)/2)
	}
	err = whileClaimed(ctx, e.claim, e.renew, e.work)
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	return errors.Join(err, s.polls.Release(ctx, e.claim), s.endIfIdle(ctx))
}

// endIfIdle has the clock wake no one while there is nothing to follow.
func (s *service) endIfIdle(ctx context.Context) error {
	isAny, err := s.polls.HasFollowed(ctx)
	if err != nil || isAny {
		return err
	}
	return s.jobs.Schedule(ctx, jobKind, postgres.PollJob, due.Next{Never: true})
}

// renew prolongs the claim. It is domain.ErrFenced when another replica has claimed one of the lists.
func (e *event) renew(ctx context.Context) error {
	before := e.held.all()
	renewed, err := e.polls.Renew(ctx, e.claim, claimFor)
	if err == nil && e.held.any(func(list string) bool {
		return slices.Contains(before, list) && !slices.Contains(renewed, list)
	}) {
		err = domain.ErrFenced
	}
	return err
}

// whileClaimed calls do, and prolongs its claim until that ends. A claim that has passed to another replica ends it.
func whileClaimed(ctx context.Context, claim domain.Claim, renew, do func(context.Context) error) error {
	working, stop := due.Keep(ctx, claim, claimFor, renew)
	defer stop()
	err := do(working)
	if errors.Is(context.Cause(working), domain.ErrFenced) {
		slog.WarnContext(ctx, "another replica has claimed the work: this one was delayed for too long")
		return nil
	}
	return err
}

// work reads all projects that are due, and then follows what Nova is changing, also while reading takes long.
func (e *event) work(ctx context.Context) error {
	round, released := make(chan error, 1), make(chan error, 1)
	go func() { round <- e.round(ctx) }()
	go func() { released <- e.releaseFloatingIPs(ctx) }()
	for {
		select {
		case err := <-round:
			if ctx.Err() == nil { // else the next event continues
				err = errors.Join(err, e.reconcile(ctx), e.releaseFloatingIPs(ctx)) // of what is deleted meanwhile
			}
			return errors.Join(err, <-released)
		case <-time.After(longRound):
			if err := e.reconcile(ctx); err != nil {
				slog.WarnContext(ctx, "the projects that Nova is changing could not be read", "error", err)
			}
		}
	}
}

// reconcile works on orders, and follows what Nova is changing unless another replica does. Each replica reconciles
// orders after what it has read: the one that follows may have reconciled before that was stored.
func (e *event) reconcile(ctx context.Context) error {
	reconcileErr := e.reconcileOrders(ctx)
	claim, err := e.jobs.Claim(ctx, jobKind, jobKey, claimFor)
	if err != nil || !claim.Acquired {
		return errors.Join(reconcileErr, err)
	}
	renew := func(ctx context.Context) error { return e.jobs.Renew(ctx, jobKind, jobKey, claim, claimFor) }
	err = whileClaimed(ctx, claim, renew, e.follow)
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	return errors.Join(reconcileErr, err, e.jobs.Release(ctx, jobKind, jobKey, claim))
}

// follow polls with growing pauses while Nova is changing instances. It reconciles orders also after the last change,
// which another replica may have stored. When nothing is changing it waits for nothing.
func (e *event) follow(ctx context.Context) error {
	end := time.Now().Add(e.followFor)
	for wait := e.pause; ; wait = min(wait*5/4, longestPause) {
		moving, err := e.polls.ListMoving(ctx, movingFor)
		if err != nil || len(moving) == 0 {
			return errors.Join(err, e.reconcileOrders(ctx))
		}
		if !time.Now().Add(wait).Before(end) || !flow.Sleep(ctx, wait) {
			return nil
		}
		err = e.readMoving(ctx, moving)
		if err = errors.Join(err, e.reconcileOrders(ctx)); err != nil {
			return err
		}
	}
}

// change stores what is known of instances, and wakes deliver-events when that made events.
func (s *service) change(ctx context.Context, known []domain.Instance) error {
	return s.changeAfter(ctx, known, nil)
}

// changeAfter also writes the states that they passed through before.
func (s *service) changeAfter(
	ctx context.Context, known []domain.Instance, passed map[string][]domain.PassedState,
) error {
	if len(known) == 0 {
		return nil
	}
	published, err := s.instances.ChangeAfter(ctx, known, passed)
	if published > 0 {
		s.wake()
	}
	return err
}

// refusedFor is how long a request that Nova refused is not repeated: a role may have been given meanwhile.
const refusedFor = 10 * time.Minute

// refusals remembers which requests were refused, for refusedFor.
type refusals struct {
	now func() time.Time // nil is time.Now

	mu    sync.Mutex
	until map[string]time.Time
}

func (r *refusals) time() time.Time {
	if r.now == nil {
		return time.Now()
	}
	return r.now()
}

// has reports whether key was refused within refusedFor.
func (r *refusals) has(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.time().Before(r.until[key])
}

// add remembers that key was refused.
func (r *refusals) add(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = map[string]time.Time{}
	}
	r.until[key] = r.time().Add(refusedFor)
}

// held are the lists of servers that an event has claimed and not released. The zero value has none.
type held struct {
	mu    sync.Mutex
	lists map[string]bool // by project; "" is the whole cloud
}

func (h *held) add(claimed ...domain.Poll) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lists == nil {
		h.lists = map[string]bool{}
	}
	for _, p := range claimed {
		h.lists[p.ProjectID] = true
	}
}

// remove is called before the lists are released, so that a renewal at the same time does not miss them.
func (h *held) remove(list string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.lists, list)
}

func (h *held) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.lists))
}

func (h *held) any(is func(list string) bool) bool { return slices.ContainsFunc(h.all(), is) }

func (e *event) release(ctx context.Context, list string) error {
	e.held.remove(list)
	return e.polls.Release(ctx, e.claim, list)
}
