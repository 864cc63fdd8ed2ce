package pollinstances

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// The parts of the database that this function needs.
type (
	clock interface {
		Now(ctx context.Context) (time.Time, error)
	}
	jobStore interface {
		Claim(ctx context.Context, kind, key string, claimFor time.Duration) (claim uuid.UUID, held bool, err error)
		Renew(ctx context.Context, kind, key string, claim uuid.UUID, claimFor time.Duration) error
		Release(ctx context.Context, kind, key string, claim uuid.UUID) error
	}
	pollStore interface {
		Prepare(ctx context.Context) error
		ClaimDue(ctx context.Context, claim uuid.UUID, claimFor time.Duration, before time.Time,
			limit int) ([]domain.Poll, error)
		ClaimSome(ctx context.Context, claim uuid.UUID, claimFor time.Duration, projects []string) ([]domain.Poll, error)
		ClaimCloud(ctx context.Context, claim uuid.UUID, claimFor time.Duration) (cloud domain.Poll, held bool, err error)
		Renew(ctx context.Context, claim uuid.UUID, claimFor time.Duration) error
		Release(ctx context.Context, claim uuid.UUID, projects ...string) error
		Swept(ctx context.Context, claim uuid.UUID, poll domain.Poll) error
		Read(ctx context.Context, claim uuid.UUID, polls []domain.Poll) error
		Followed(ctx context.Context) ([]domain.Poll, error)
		Moving(ctx context.Context, within time.Duration) ([]string, error)
		OfServers(ctx context.Context, servers []domain.Server) ([]domain.Instance, error)
		Unwanted(ctx context.Context, servers []domain.Server) ([]string, error)
		ListUncertain(ctx context.Context, projects []string, limit int) ([]domain.Instance, error)
		Seen(ctx context.Context, unchanged []domain.Instance, at time.Time) error
		ListMissing(ctx context.Context, projects []string, before time.Time) ([]domain.Instance, error)
		ListStale(ctx context.Context, projectID string, since time.Time) ([]domain.Instance, error)
		Living(ctx context.Context, projectID string) ([]domain.Instance, error)
		Running(ctx context.Context) ([]domain.Order, error)
	}
	instanceStore interface {
		ChangeAfter(ctx context.Context, known []domain.Instance, passed map[string][]domain.Passed) (published int, err error)
		orders.Instances
	}
)

type service struct {
	cloud     *sessions
	clock     clock
	jobs      jobStore
	polls     pollStore
	instances instanceStore
	orders    orders.Store
	wake      func() // whoever delivers events

	full         time.Duration
	unknownAfter time.Duration
	followFor    time.Duration
	pause        time.Duration

	busy     sync.Mutex // one event at a time
	each     refusals   // of "": Nova does not let the account see the whole cloud, so each project is read by itself
	readOnly refusals   // of projects in which the account may not act
}

const (
	jobKind = "poll-instances"
	jobKey  = "all"
	// A replica that dies keeps the others waiting for this long; one that lives says so in time.
	claimFor   = 20 * time.Second
	renewEvery = claimFor / 4

	longestPause = 5 * time.Second
	longRound    = 10 * time.Second
	// Nova may be at work on an instance for days, such as on a resize that nobody confirms. Looked at closely is only
	// what has changed within this time.
	movingFor = 10 * time.Minute
)

// event is the work that one event does.
type event struct {
	*service
	claim uuid.UUID    // on all that it reads
	began time.Time    // by the database's clock
	logs  atomic.Int32 // how many action logs it has read

	leastWait time.Duration // Nova is not silent when it had less time than this
}

// Poll reads what changed, once, and then again for as long as Nova is at work on instances. Other replicas may do
// so at the same time: what one has claimed the others leave alone. In one process one event works at a time.
func (s *service) Poll(ctx context.Context) error {
	if !s.busy.TryLock() {
		return nil
	}
	defer s.busy.Unlock()
	began, err := s.clock.Now(ctx)
	if err != nil {
		return err
	}
	e := &event{service: s, claim: uuid.New(), began: began, leastWait: leastWait}
	if deadline, ok := ctx.Deadline(); ok {
		e.leastWait = min(leastWait, time.Until(deadline)/2)
	}
	err = held(ctx, func(ctx context.Context) error { return s.polls.Renew(ctx, e.claim, claimFor) }, e.work)
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	return errors.Join(err, s.polls.Release(ctx, e.claim))
}

// held calls do, and prolongs its claim until that ends. A claim that another replica has adopted ends it.
func held(ctx context.Context, renew, do func(context.Context) error) error {
	working, stop := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for domain.Pause(working, renewEvery) {
			if err := renew(working); errors.Is(err, domain.ErrFenced) {
				stop(err)
			}
		}
	}()
	err := do(working)
	if errors.Is(context.Cause(working), domain.ErrFenced) {
		slog.WarnContext(ctx, "another replica has adopted the claim: this one was held up for too long")
		err = nil
	}
	stop(nil)
	<-ended
	return err
}

// work reads all that is due, and then tends to what moves; when reading takes long, it does so meanwhile, too.
func (e *event) work(ctx context.Context) error {
	round := make(chan error, 1)
	go func() { round <- e.round(ctx) }()
	for {
		select {
		case err := <-round:
			if ctx.Err() != nil {
				return err // the next event goes on
			}
			return errors.Join(err, e.tend(ctx))
		case <-time.After(longRound):
			if err := e.tend(ctx); err != nil {
				slog.WarnContext(ctx, "while all projects are read, the moving ones could not be", "error", err)
			}
		}
	}
}

// tend attends to orders and follows what moves, unless another replica does.
func (e *event) tend(ctx context.Context) error {
	claim, mine, err := e.jobs.Claim(ctx, jobKind, jobKey, claimFor)
	if err != nil || !mine {
		return err
	}
	renew := func(ctx context.Context) error { return e.jobs.Renew(ctx, jobKind, jobKey, claim, claimFor) }
	err = held(ctx, renew, func(ctx context.Context) error { return errors.Join(e.attend(ctx), e.follow(ctx)) })
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	return errors.Join(err, e.jobs.Release(ctx, jobKind, jobKey, claim))
}

// follow looks again, ever less often, while Nova is at work on instances.
func (e *event) follow(ctx context.Context) error {
	end := time.Now().Add(e.followFor)
	for wait := e.pause; time.Now().Add(wait).Before(end) && domain.Pause(ctx, wait); wait = min(wait*5/4, longestPause) {
		moving, err := e.polls.Moving(ctx, movingFor)
		if err != nil || len(moving) == 0 {
			return err
		}
		if err := errors.Join(e.readMoving(ctx, moving), e.attend(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// change stores what is known of instances, and wakes deliver-events when that made events.
func (s *service) change(ctx context.Context, known []domain.Instance) error {
	return s.changeAfter(ctx, known, nil)
}

// changeAfter also writes the states that they passed through before.
func (s *service) changeAfter(ctx context.Context, known []domain.Instance, passed map[string][]domain.Passed) error {
	if len(known) == 0 {
		return nil
	}
	published, err := s.instances.ChangeAfter(ctx, known, passed)
	if published > 0 {
		s.wake()
	}
	return err
}

// refusedFor is how long what Nova refused is not asked for again: a role may have been given meanwhile.
const refusedFor = 10 * time.Minute

// refusals remembers what was refused, for a while.
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

// Load says whether key was refused lately.
func (r *refusals) Load(key string) (until time.Time, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	until = r.until[key]
	return until, r.time().Before(until)
}

// Store remembers that key was refused, or forgets it.
func (r *refusals) Store(key string, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = map[string]time.Time{}
	}
	delete(r.until, key)
	if refused {
		r.until[key] = r.time().Add(refusedFor)
	}
}

// sorted are the ids of projects.
func sorted(projects map[string]domain.Poll) []string {
	ids := make([]string, 0, len(projects))
	for id := range projects {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
