package runconnections

import (
	"context"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
// next until nothing is due, or the event's time is over.
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
