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
			return Follow(ctx, 30*time.Second, func(left time.Duration) (bool, error) {
				if want := FollowFor - time.Since(begin); left != want {
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
			"done later":   {until: 2, steps: 2, took: 30 * time.Second},
			"time is over": {until: 9, steps: 3, took: time.Minute},
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
		ending := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(ending) })
		if err := follow(WithEnding(t.Context(), ending), 9, nil); err != nil || steps != 1 ||
			time.Since(begin) != time.Second {
			t.Errorf("its process ended: %v after %d steps and %v", err, steps, time.Since(begin))
		}
	})
}

// TestFollowKeepsPauses: with a tick each minute, work that is due at any second is done within the pause between two
// steps, also when it becomes due at the end of an event.
func TestFollowKeepsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = time.Second
		began, events := time.Now(), NewPair()
		due := began.Add(5 * time.Second)
		tick := func() {
			leave, err := events.Enter(t.Context())
			if leave == nil {
				return
			}
			defer leave()
			err = errors.Join(err, Follow(t.Context(), wait, func(left time.Duration) (bool, error) {
				if late := time.Since(due); late > wait {
					t.Errorf("after %s: %s late", time.Since(began), late)
				}
				if !time.Now().Before(due) {
					due = due.Add(17 * time.Second)
				}
				return time.Until(due) < left, nil
			}))
			if err != nil {
				t.Error(err)
			}
		}
		for range 20 {
			go tick()
			time.Sleep(time.Minute)
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
