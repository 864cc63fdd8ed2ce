package flow

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

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
	failed := errors.New("away")
	fail := func(context.Context) (int, error) { return 0, failed }
	if _, err := s.Get(t.Context(), 0, fail); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if got, err := s.Get(t.Context(), 0, func(context.Context) (int, error) { return 7, nil }); got != 7 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
}
