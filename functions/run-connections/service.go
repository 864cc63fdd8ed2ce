package runconnections

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
)

type service struct {
	cloud       *delegation.Sessions[session]
	db          *postgres.DB
	jobs        postgres.Jobs
	connections postgres.Connections
	delegations postgres.Delegations
	orders      postgres.Orders
	actions     postgres.Actions
	instances   postgres.Instances
	requests    postgres.ConnectionRequests
	seal        seal.PrivateKeys
	wake        func(functions ...string)
	region      string // of this cloud; "" = its only one
	// readsResources has each check also read what can be ordered through the connection.
	readsResources bool
	pending        func(ctx context.Context, revocations int64) // for the operator

	chores   []chore
	periodic *due.Chores
	workers  *workers
	events   flow.Gate // those of this process
}

// newService has all stores of the database, and no way to log in.
func newService(db *postgres.DB, wake func(functions ...string)) *service {
	s := &service{
		events: flow.NewGate(), cloud: delegation.NewSessions[session](nil, sessionTTL),
		db: db, jobs: postgres.Jobs{DB: db}, connections: postgres.Connections{DB: db},
		delegations: postgres.Delegations{DB: db}, orders: postgres.Orders{DB: db}, actions: postgres.Actions{DB: db},
		instances: postgres.Instances{DB: db}, requests: postgres.ConnectionRequests{DB: db}, wake: wake,
		pending: func(context.Context, int64) {}, workers: newWorkers(),
	}
	s.periodic = &due.Chores{Jobs: s.jobs, Kind: jobKind, All: []*due.Chore{
		{Name: "retire", Every: retireEvery, Limit: retireTime, Do: s.retire},
		{Name: postgres.RemoteJob, Second: second, Limit: remoteTime, Do: s.markStale, IsIdle: s.isAlone},
	}}
	s.chores = s.housekeeping()
	return s
}

const (
	jobKind = "run-connections"
	soon    = time.Second     // between two polls while this replica works
	later   = 2 * time.Second // while another one is
	// claimFor is for how long a replica that may have died keeps its work. Two thirds of it may go to one create call.
	claimFor = 45 * time.Second

	listed = 50 // connections, and orders of each, at one poll

	// The pauses of a connection whose cloud gives no answer, or whose delegation cannot be decrypted, grow.
	firstPause   = 10 * time.Second
	longestPause = 10 * time.Minute

	second     = 24 // of the minute, when servers in other clouds are due: no other function has the same
	remoteTime = 20 * time.Second

	retireEvery = time.Hour
	retireTime  = 2 * time.Minute
	retireAfter = 7 * 24 * time.Hour
	// Connections that ended, and requests for them, are shown to their projects for this long.
	retireConnectionsAfter = 90 * 24 * time.Hour
)

// Run does the work that is due, and polls for more while some is in progress. In one process one event at a time
// begins tasks, and one waits until it has; a third returns immediately, because the one that waits polls after it. An
// event whose time is up, or that waits for nothing but a slow cloud, lets the next one begin; it is answered when
// its own tasks have ended. So an event is answered only when a poll after it has ended.
func (s *service) Run(ctx context.Context) error {
	leave, err := s.events.Enter(ctx)
	if leave == nil {
		return err
	}
	b := s.workers.batch()
	err = s.run(ctx, b)
	leave()
	if b.working() {
		due.PlanRest(ctx)
	}
	b.all.Wait()
	return errors.Join(append(b.errs, err)...)
}

func (s *service) run(ctx context.Context, b *batch) error {
	begun := map[string]time.Time{} // when each chore was begun last
	// Until end the event begins new work. What it has begun it ends.
	for end := time.Now().Add(due.FollowFor); ; {
		if err := s.work(ctx, b); err != nil {
			return err
		}
		busy, err := s.delegations.Busy(ctx, movingFor, min(time.Until(end), due.Soon))
		if err != nil || len(begun) > 0 && !busy && !b.working() {
			return err
		}
		for _, c := range s.chores {
			if at, isBegun := begun[c.name]; !isBegun || time.Since(at) > c.every {
				begun[c.name] = time.Now()
				b.begin(c.name, c.name, domain.RemoteCloud{}, func() { b.fail(c.do(ctx, b, end)) })
			}
		}
		if !b.wait(ctx, busy, end) {
			return nil
		}
	}
}

// chore is done beside the orders and actions, at most once at a time. One that fails or hangs keeps none of them
// waiting.
type chore struct {
	name  string
	every time.Duration // between two runs of one event
	do    func(ctx context.Context, b *batch, end time.Time) error
}

// housekeeping are the chores.
func (s *service) housekeeping() []chore {
	alone := func(do func(ctx context.Context) error) func(context.Context, *batch, time.Time) error {
		return func(ctx context.Context, _ *batch, _ time.Time) error { return do(ctx) }
	}
	return []chore{
		{"periodic", due.FollowFor, alone(s.periodic.Run)},
		{"pending revocations", due.FollowFor, alone(s.reportPending)},
		{"requests", due.FollowFor, alone(s.expireRequests)},
		{"ends", 0, s.ends},
		{"checks", 0, s.checks},
		{"servers", movingInterval, s.follow},
		{"stale", movingInterval, alone(s.markStale)},
	}
}

// isAlone reports whether there are no servers in other clouds to follow.
func (s *service) isAlone(ctx context.Context) (bool, error) {
	isAny, err := s.delegations.HasRemote(ctx)
	return !isAny, err
}

// wait waits until the next poll. It is false when that is after end. Without work in progress it ends as soon as the
// event's tasks have ended.
func (b *batch) wait(ctx context.Context, busy bool, end time.Time) bool {
	pause := later
	if b.working() {
		pause = soon
	}
	if time.Now().Add(pause).After(end) {
		return false
	}
	idle := b.idle
	if busy {
		idle = nil
	}
	return flow.Await(ctx, pause, idle)
}

// retire deletes old rows.
func (s *service) retire(ctx context.Context) error {
	return errors.Join(s.delegations.Retire(ctx, retireAfter, retireConnectionsAfter),
		s.requests.Retire(ctx, retireConnectionsAfter))
}

// work begins the orders and actions that wait, as far as their clouds' pools have room.
func (s *service) work(ctx context.Context, b *batch) error {
	waiting, err := s.delegations.Work(ctx, listed)
	if err != nil {
		return err
	}
	for _, c := range waiting {
		b.begin("connection/"+c.ID.String(), "connections", cloudOf(c), func() { s.serve(ctx, b, c) })
	}
	return nil
}

// expireRequests ends requests for connections that were not decided in time.
func (s *service) expireRequests(ctx context.Context) error {
	n, err := s.requests.Expire(ctx)
	if n > 0 {
		s.wake("deliver-events")
	}
	return err
}

const (
	// poolSize is how many tasks of one kind run at a time for one cloud.
	poolSize = 4
	// A task that runs for slowAfter makes room for another one: it may wait for an answer that only its own connection
	// does not get. At most maxSlow tasks of one kind and cloud do so.
	slowAfter = 2 * time.Second
	maxSlow   = 12

	orderTasks = "orders" // take long by their nature, and make room for no others
)

// workers bounds what this process has under way: each task once, and of each pool poolSize tasks at a time that are
// not slow. Each cloud has pools of its own, so that one that gives no answer keeps no other waiting.
type workers struct {
	mu      sync.Mutex
	running map[string]bool  // by task
	pools   map[string]*pool // there are as many as the operator allows clouds
}

// pool counts the tasks of one kind for one cloud.
type pool struct {
	isFixed    bool // no task of it makes room
	busy, slow int
}

func newWorkers() *workers {
	return &workers{running: map[string]bool{}, pools: map[string]*pool{}}
}

// cloudOf names the connection's cloud.
func cloudOf(c domain.Connection) domain.RemoteCloud {
	return domain.RemoteCloud{AuthURL: c.AuthURL, Region: c.Region}
}

// batch is the tasks that one event has begun.
type batch struct {
	*workers

	all     sync.WaitGroup
	pending int           // guarded by mu
	errs    []error       // of chores, and of reading what is due; guarded by mu
	idle    chan struct{} // gets a value when the last pending task has ended
}

func (w *workers) batch() *batch { return &batch{workers: w, idle: make(chan struct{}, 1)} }

// begin runs a task beside the others, unless it is running or its cloud's pool is full. The next
// poll of the database begins it again.
func (b *batch) begin(task, kind string, cloud domain.RemoteCloud, do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pool(kind, cloud)
	if b.running[task] || p.busy >= poolSize {
		return
	}
	b.running[task] = true
	b.start(p, func() {
		do()
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.running, task)
	})
}

// fail adds an error, by which the event fails.
func (b *batch) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.errs = append(b.errs, err)
	}
}

// fill runs as many tasks beside the others as the cloud's pool has room for, whatever the other clouds do. Each calls
// next until nothing is due, or the event's time is up.
func (b *batch) fill(
	ctx context.Context, kind string, cloud domain.RemoteCloud, end time.Time, next func() (isFound bool),
) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := b.pool(kind, cloud); p.busy < poolSize; {
		b.start(p, func() {
			for time.Now().Before(end) && ctx.Err() == nil && next() {
			}
		})
	}
}

func (b *batch) pool(kind string, cloud domain.RemoteCloud) *pool {
	key := kind + " " + cloud.AuthURL + " " + cloud.Region
	p, ok := b.pools[key]
	if !ok {
		p = &pool{isFixed: kind == orderTasks}
		b.pools[key] = p
	}
	return p
}

// start runs do beside the others. The caller holds mu.
func (b *batch) start(p *pool, do func()) {
	p.busy++
	b.pending++
	isSlow, isOver := false, false
	slow := time.AfterFunc(slowAfter, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !isOver && !p.isFixed && p.slow < maxSlow {
			isSlow = true
			p.slow++
			p.busy--
		}
	})
	b.all.Go(func() {
		do()
		b.mu.Lock()
		defer b.mu.Unlock()
		isOver = true
		slow.Stop()
		b.ended(p, isSlow)
	})
}

// ended is called with mu held.
func (b *batch) ended(p *pool, wasSlow bool) {
	if wasSlow {
		p.slow--
	} else {
		p.busy--
	}
	if b.pending--; b.pending > 0 {
		return
	}
	select {
	case b.idle <- struct{}{}:
	default:
	}
}

// working reports whether a task of the event is running.
func (b *batch) working() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending > 0
}
