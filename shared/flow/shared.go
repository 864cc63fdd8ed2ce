package flow

import (
	"context"
	"sync"
)

// Shared is a value that is opened once for all callers, such as a session. The zero value of T means none.
type Shared[T comparable] struct {
	mu      sync.Mutex // never held while open runs
	current T
	opening chan struct{} // closed when the caller that opens is done; nil when none does
}

// Get returns the current value, unless that is stale, or opens another one. One caller opens at a time. The others
// wait for its value until their own contexts end; if it fails, the next one tries.
func (s *Shared[T]) Get(ctx context.Context, stale T, open func(context.Context) (T, error)) (T, error) {
	var none T
	for {
		s.mu.Lock()
		if s.current != none && s.current != stale {
			defer s.mu.Unlock()
			return s.current, nil
		}
		opening := s.opening
		if opening == nil {
			s.opening = make(chan struct{})
			s.mu.Unlock()
			return s.open(ctx, open)
		}
		s.mu.Unlock()
		select {
		case <-opening:
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
}

func (s *Shared[T]) open(ctx context.Context, open func(context.Context) (T, error)) (opened T, err error) {
	var none T
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil && opened != none {
			s.current = opened
		}
		close(s.opening)
		s.opening = nil
	}()
	return open(ctx)
}

// Current returns the value that is open, or none.
func (s *Shared[T]) Current() T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Forget drops the value if it is still the stale one.
func (s *Shared[T]) Forget(stale T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == stale {
		var none T
		s.current = none
	}
}
