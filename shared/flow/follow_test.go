package flow

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestFollow ends when there is no more to do, with an error, when its time is over, and with its context.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps, begin := 0, time.Now()
		follow := func(ctx context.Context, until int, fault error) error {
			steps, begin = 0, time.Now()
			return Follow(ctx, 10*time.Second, 3*time.Second, func(left time.Duration) (bool, error) {
				if want := 10*time.Second - time.Since(begin); left != want {
					t.Errorf("left %v, want %v", left, want)
				}
				steps++
				return steps != until, fault
			})
		}
		for name, c := range map[string]struct {
			until, steps int
			took         time.Duration
			err          error
		}{
			"done at once": {until: 1, steps: 1},
			"done later":   {until: 3, steps: 3, took: 6 * time.Second},
			"time is over": {until: 9, steps: 4, took: 9 * time.Second},
			"error":        {until: 9, steps: 1, err: errors.New("broken")},
		} {
			err := follow(t.Context(), c.until, c.err)
			if !errors.Is(err, c.err) || steps != c.steps || time.Since(begin) != c.took {
				t.Errorf("%s: %v after %d steps and %v", name, err, steps, time.Since(begin))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := follow(ctx, 9, nil); err != nil || steps != 1 || time.Since(begin) != time.Second {
			t.Errorf("its context ended: %v after %d steps and %v", err, steps, time.Since(begin))
		}
	})
}

// TestTasks counts those that run, and waits for them.
func TestTasks(t *testing.T) {
	var tasks Tasks
	end := make(chan struct{})
	for range 3 {
		tasks.Go(func() { <-end })
	}
	if got := tasks.Running(); got != 3 {
		t.Errorf("%d run, want 3", got)
	}
	close(end)
	tasks.Wait()
	if got := tasks.Running(); got != 0 {
		t.Errorf("%d run after all have ended", got)
	}
}
