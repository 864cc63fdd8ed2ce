package runconnections

import (
	"sync"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// workers bounds what this process has under way: each task once, and of each pool so many tasks at a time. Each cloud has pools of its
// own, so that one that gives no answer keeps no other waiting.
type workers struct {
	mu      sync.Mutex
	running map[string]bool          // by task
	pools   map[string]chan struct{} // there are as many as the operator allows clouds
}

func newWorkers() *workers {
	return &workers{running: map[string]bool{}, pools: map[string]chan struct{}{}}
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
	idle    chan struct{} // gets a value when the last pending task has ended
}

func (w *workers) batch() *batch { return &batch{workers: w, idle: make(chan struct{}, 1)} }

// begin runs a task beside the others, unless it is running or its pool, which holds size tasks, is full. It is begun again when the
// database is next looked at.
func (b *batch) begin(task, pool string, cloud domain.RemoteCloud, size int, do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := pool + " " + cloud.AuthURL + " " + cloud.Region
	slots, ok := b.pools[key]
	if !ok {
		slots = make(chan struct{}, size)
		b.pools[key] = slots
	}
	if b.running[task] {
		return
	}
	select {
	case slots <- struct{}{}:
	default:
		return
	}
	b.running[task] = true
	b.pending++
	b.all.Go(func() {
		defer b.ended(task, slots)
		do()
	})
}

func (b *batch) ended(task string, slots chan struct{}) {
	<-slots
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.running, task)
	if b.pending--; b.pending > 0 {
		return
	}
	select {
	case b.idle <- struct{}{}:
	default:
	}
}

// working says whether a task of the event is running.
func (b *batch) working() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending > 0
}
