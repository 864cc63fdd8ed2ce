package audit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// world is what a check looks at: it sees how things are when it begins, and tells when it ends.
type world struct {
	takes  time.Duration
	mu     sync.Mutex
	err    error
	checks int
}

func (w *world) Check(ctx context.Context) error {
	w.mu.Lock()
	err := w.err
	w.checks++
	w.mu.Unlock()
	select {
	case <-time.After(w.takes):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *world) set(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func TestReadyIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: 10 * time.Millisecond}
		l := New(nil, w)
		for range 3 {
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() {
					if err := l.Ready(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		if w.checks > 6 { // each time one for the first, and one for those who came while it ran
			t.Errorf("600 calls took %d checks", w.checks)
		}
	})
}

// TestReadyIsNeverOld lets the world change while a check runs: whoever asks after the change hears of it.
func TestReadyIsNeverOld(t *testing.T) {
	t.Parallel()
	broken := apperr.New(apperr.Unavailable, "broken")
	for name, tc := range map[string]struct{ before, after error }{
		"it breaks": {nil, broken},
		"it heals":  {broken, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &world{takes: 10 * time.Millisecond, err: tc.before}
				l := New(nil, w)
				began := time.Now()
				var all sync.WaitGroup
				all.Go(func() {
					if err := l.Ready(t.Context()); !errors.Is(err, tc.before) {
						t.Errorf("before: got %v", err)
					}
				})
				time.Sleep(5 * time.Millisecond)
				w.set(tc.after)
				for range 20 {
					all.Go(func() {
						if err := l.Ready(t.Context()); !errors.Is(err, tc.after) || time.Since(began) != 2*w.takes {
							t.Errorf("after: got %v at %s", err, time.Since(began))
						}
					})
				}
				all.Wait()
				if w.checks != 2 {
					t.Errorf("there were %d checks", w.checks)
				}
			})
		})
	}
}

// TestReadyEndsWithItsContext, and only for the caller whose context it is.
func TestReadyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: time.Second}
		l := New(nil, w)
		began := time.Now()
		hurried, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() {
			if err := l.Ready(hurried); apperr.CodeOf(err) != apperr.Timeout ||
				time.Since(began) != 100*time.Millisecond {
				t.Errorf("the hurried one got %v after %s", err, time.Since(began))
			}
		})
		all.Go(func() {
			if err := l.Ready(t.Context()); err != nil {
				t.Errorf("the patient one got %v", err)
			}
		})
		all.Wait()
		time.Sleep(2 * w.takes) // a check that nobody waits for any more ends too
	})
}

// TestASilentCheck is given up on, and the next one begins.
func TestASilentCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: time.Hour}
		l := New(nil, w)
		began := time.Now()
		if err := l.Ready(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != writeTimeout {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
		w.mu.Lock()
		w.takes = 0
		w.mu.Unlock()
		if err := l.Ready(t.Context()); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}
