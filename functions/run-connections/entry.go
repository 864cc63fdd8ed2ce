package runconnections

import (
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// ready is an open session, and its generation of the connection.
type ready struct {
	session    session
	generation int
}

// entry is what is known of one connection.
type entry struct {
	ready atomic.Pointer[ready] // what in returns without a lock; nil = none

	lock       *semaphore.Weighted // of one, for all below: while one logs in the others wait, unless one is ready
	connection domain.Connection   // as it was last seen: of its newest generation
	session    session
	opened     time.Time // when a login was last tried
	known      bool      // the flavors have been read with one
	lost       error     // once it is set there are no more logins
}

func (s *sessions) entry(id uuid.UUID) *entry {
	s.adding.Lock()
	defer s.adding.Unlock()
	e, ok := s.kept.Get(id)
	if !ok {
		e = &entry{lock: semaphore.NewWeighted(1)}
		s.kept.Add(id, e)
	}
	return e
}

// update gives the entry the connection's newest state. A session of another trust or secret is not used again.
func (e *entry) update(c domain.Connection) {
	switch {
	case c.Generation > e.connection.Generation:
		e.session, e.known, e.lost = nil, false, nil
	case c.Generation < e.connection.Generation:
		return // it was read before it was changed
	}
	e.connection = c
}

func (e *entry) isOpen() bool { return e.session != nil && e.lost == nil }

// publish has in return the session without the lock, if it may be used.
func (e *entry) publish() {
	if !e.isOpen() || !e.known {
		e.ready.Store(nil)
		return
	}
	e.ready.Store(&ready{e.session, e.connection.Generation})
}
