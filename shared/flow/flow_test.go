package flow

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestCoalescer: requests during a run make one more run together.
func TestCoalescer(t *testing.T) {
	t.Parallel()
	var c Coalescer
	run := c.Begin()
	if run == nil || c.Begin() != nil || c.Begin() != nil {
		t.Fatal("not exactly one caller has to run")
	}
	if run.Done() || !run.Done() {
		t.Error("the run was not repeated exactly once")
	}
	next := c.Begin()
	if run.Stop(); next == nil || c.Begin() != nil {
		t.Error("a run that has ended has stopped the next one")
	}
	if next.Stop(); !c.Begin().Done() {
		t.Error("a stopped run left a request behind")
	}
}

// TestSleep ends with its context.
func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if !Sleep(ctx, 400*time.Millisecond) || Sleep(ctx, time.Hour) || time.Since(began) != time.Second {
			t.Errorf("it took %s", time.Since(began))
		}
	})
}

// TestGate: one works, one waits until it has left, and a third has nothing to do. One that has expired waits no
// longer, and lets another one wait.
func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewGate()
		leave, err := p.Enter(t.Context())
		if leave == nil || err != nil {
			t.Fatalf("the first may not work: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if late, err := p.Enter(short); late != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that has expired: may work %v, %v", late != nil, err)
		}
		entered := make(chan func())
		go func() {
			leave, err := p.Enter(t.Context())
			if err != nil {
				t.Error(err)
			}
			entered <- leave
		}()
		synctest.Wait()
		if third, err := p.Enter(t.Context()); third != nil || err != nil {
			t.Errorf("the third: may work %v, %v", third != nil, err)
		}
		select {
		case <-entered:
			t.Error("the second works beside the first")
		default:
		}
		leave()
		second := <-entered
		if second == nil {
			t.Fatal("the second may not work")
		}
		second()
		if leave, err := p.Enter(t.Context()); leave == nil || err != nil {
			t.Errorf("afterwards no one may work: %v", err)
		}
	})
}

// TestSharedHit: a caller that has another value than the stale one does not wait while the next value is opened.
func TestSharedHit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s Shared[int]
		opens := 0
		open := func(ctx context.Context) (int, error) {
			opens++
			if !Sleep(ctx, time.Minute) {
				return 0, ctx.Err()
			}
			return opens, nil
		}
		began := time.Now()
		for range 10 {
			go func() {
				if got, err := s.Get(t.Context(), 0, open); got != 1 || err != nil {
					t.Errorf("got %d, %v", got, err)
				}
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Get(ctx, 0, open)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("a waiter whose context has ended got %v after %s", err, time.Since(began))
		}
		time.Sleep(time.Hour)
		go func() { _, _ = s.Get(t.Context(), 1, open) }() // 1 is stale
		synctest.Wait()
		began = time.Now()
		if got, err := s.Get(t.Context(), 0, open); got != 1 || err != nil || time.Since(began) != 0 {
			t.Errorf("a hit got %d, %v after %s", got, err, time.Since(began))
		}
		time.Sleep(time.Hour)
		s.Forget(1)
		if got, err := s.Get(t.Context(), 1, open); got != 2 || err != nil || opens != 2 {
			t.Errorf("got %d, %v after opening %d times", got, err, opens)
		}
	})
}

// TestSharedOpenFails: the next caller tries, also after a panic.
func TestSharedOpenFails(t *testing.T) {
	t.Parallel()
	var s Shared[int]
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Get(t.Context(), 0, func(context.Context) (int, error) { panic("bug") })
	}()
	failed := errors.New("unavailable")
	fail := func(context.Context) (int, error) { return 0, failed }
	if _, err := s.Get(t.Context(), 0, fail); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if got, err := s.Get(t.Context(), 0, func(context.Context) (int, error) { return 7, nil }); got != 7 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
}
