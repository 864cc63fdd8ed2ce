package deliverevents

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// An attempt that lasts for slowAfter moves to the slow lane, which has slowPlaces times as many places: receivers that are
// slow or dead take nobody's place for longer than that.
const (
	slowAfter  = time.Second
	slowPlaces = 4
)

// lanes are the places for attempts in this copy.
type lanes struct {
	poked chan struct{} // something has happened

	mu         sync.Mutex
	fast, slow int // places that are free
	taken      int
	held       map[held]int // streams of each callback
}

type held struct {
	projectID  string
	callbackID uuid.UUID
}

func newLanes(workers int) *lanes {
	return &lanes{poked: make(chan struct{}, 1), fast: workers, slow: slowPlaces * workers, held: map[held]int{}}
}

// free is how many places each lane has left.
func (l *lanes) free() (fast, slow int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fast, l.slow
}

func (l *lanes) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken == 0
}

// streams are those that this copy works on.
func (l *lanes) streams() []domain.HeldStreams {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]domain.HeldStreams, 0, len(l.held))
	for of, n := range l.held {
		list = append(list, domain.HeldStreams{ProjectID: of.projectID, CallbackID: of.callbackID, Streams: n})
	}
	return list
}

// poke ends a rest.
func (l *lanes) poke() {
	select {
	case l.poked <- struct{}{}:
	default:
	}
}

// rest waits for something to happen, for a time.
func (l *lanes) rest(ctx context.Context) {
	if !sleep(ctx, shortPause) {
		return
	}
	select {
	case <-l.poked:
	case <-time.After(longPause):
	case <-ctx.Done():
	}
}

// seat is one place.
type seat struct {
	lanes *lanes
	of    held
	slow  bool
	move  *time.Timer
}

// enter takes a place, of which there must be one.
func (l *lanes) enter(c domain.Callback, slow bool) *seat {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &seat{lanes: l, of: held{c.ProjectID, c.ID}, slow: slow}
	l.taken++
	l.held[s.of]++
	if slow {
		l.slow--
		return s
	}
	l.fast--
	s.move = time.AfterFunc(slowAfter, s.overtaken)
	return s
}

// overtaken moves to the slow lane as soon as it has room.
func (s *seat) overtaken() {
	l := s.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case s.move == nil: // it has left
	case l.slow == 0:
		s.move.Reset(slowAfter / 4)
	default:
		s.slow = true
		l.slow--
		l.fast++
		l.poke()
	}
}

func (s *seat) isSlow() bool {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	return s.slow
}

func (s *seat) leave() {
	l := s.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.move != nil {
		s.move.Stop()
		s.move = nil
	}
	if s.slow {
		l.slow++
	} else {
		l.fast++
	}
	l.taken--
	if l.held[s.of]--; l.held[s.of] == 0 {
		delete(l.held, s.of)
	}
	l.poke()
}
