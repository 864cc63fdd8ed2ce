package deliverevents

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// An attempt that lasts for slowAfter moves to a slow slot: slow or dead receivers occupy no fast slot for longer than
// that. There are slowFactor times as many slow slots as fast ones.
const (
	slowAfter  = time.Second
	slowFactor = 4
)

// pool holds the slots for attempts in this replica.
type pool struct {
	changed chan struct{} // holds one when a slot changed or someone has called wake

	mu         sync.Mutex
	fast, slow int // free slots
	inFlight   int
	streams    map[callbackKey]int // in flight, of each callback
}

type callbackKey struct {
	projectID string
	id        uuid.UUID
}

func newPool(workers int) *pool {
	return &pool{
		changed: make(chan struct{}, 1), fast: workers, slow: slowFactor * workers,
		streams: map[callbackKey]int{},
	}
}

// free is the number of free slots of each kind.
func (p *pool) free() (fast, slow int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fast, p.slow
}

func (p *pool) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inFlight == 0
}

// inFlightOf lists how many streams of each callback this replica works on.
func (p *pool) inFlightOf() []domain.StreamsInFlight {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]domain.StreamsInFlight, 0, len(p.streams))
	for of, n := range p.streams {
		list = append(list, domain.StreamsInFlight{ProjectID: of.projectID, CallbackID: of.id, Streams: n})
	}
	return list
}

// wake ends a wait.
func (p *pool) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// wait waits until it pays to claim more: after shortPause at the earliest, when a slot changes, or after pause. It is
// false when no more may be claimed.
func (p *pool) wait(ctx context.Context, pause time.Duration) bool {
	return flow.Await(ctx, shortPause, nil) && flow.Await(ctx, pause, p.changed)
}

// slot is room for one attempt.
type slot struct {
	pool *pool
	of   callbackKey
	slow bool
	move *time.Timer
}

// take takes a slot. The caller has checked that one is free.
func (p *pool) take(c domain.Callback, slow bool) *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &slot{pool: p, of: callbackKey{c.ProjectID, c.ID}, slow: slow}
	p.inFlight++
	p.streams[s.of]++
	if slow {
		p.slow--
		return s
	}
	p.fast--
	s.move = time.AfterFunc(slowAfter, s.moveToSlow)
	return s
}

// moveToSlow turns the slot into a slow one as soon as one is free.
func (s *slot) moveToSlow() {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case s.move == nil: // it was released
	case p.slow == 0:
		s.move.Reset(slowAfter / 4)
	default:
		s.slow = true
		p.slow--
		p.fast++
		p.wake()
	}
}

func (s *slot) isSlow() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.slow
}

func (s *slot) release() {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.move != nil {
		s.move.Stop()
		s.move = nil
	}
	if s.slow {
		p.slow++
	} else {
		p.fast++
	}
	p.inFlight--
	if p.streams[s.of]--; p.streams[s.of] == 0 {
		delete(p.streams, s.of)
	}
	p.wake()
}
