package due

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeJobs are jobs in memory, by the fake clock of synctest.
type fakeJobs struct {
	mu       sync.Mutex
	failing  error // of Register and ListDue
	due      map[string]time.Time
	failures map[string]int
	nexts    map[string]Next // the last one of each
}

func newFakeJobs() *fakeJobs {
	return &fakeJobs{due: map[string]time.Time{}, failures: map[string]int{}, nexts: map[string]Next{}}
}

func (j *fakeJobs) Register(_ context.Context, _ string, keys []string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for key := range j.due {
		if !slices.Contains(keys, key) {
			delete(j.due, key)
		}
	}
	for _, key := range keys {
		if _, isKnown := j.due[key]; !isKnown {
			j.due[key] = time.Now()
		}
	}
	return j.failing
}

func (j *fakeJobs) ListDue(context.Context, string) (keys []string, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for key, at := range j.due {
		if !at.After(time.Now()) {
			keys = append(keys, key)
		}
	}
	return keys, j.failing
}

func (j *fakeJobs) Claim(context.Context, string, string, time.Duration) (domain.Claim, error) {
	c := domain.NewClaim()
	c.Acquired = true
	return c, nil
}

func (j *fakeJobs) ClaimDue(_ context.Context, _, key string, _ time.Duration) (domain.Claim, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := domain.NewClaim()
	c.Acquired = !j.due[key].After(time.Now())
	return c, nil
}

func (j *fakeJobs) Finish(_ context.Context, _, key string, _ domain.Claim, next Next, failure error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.nexts[key] = next
	j.due[key] = time.Now().Add(max(next.In, time.Second))
	if failure != nil {
		j.failures[key]++
	}
	return nil
}

// TestChores: housekeeping that fails or hangs keeps no row waiting, its error is the event's, and it is repeated in a
// minute. What is done every hour is done every hour, and what is done by each event is due each minute.
func TestChores(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(func(w *world, _ context.Context, id string) error {
			w.done(id, 0)
			return nil
		})
		jobs, broken := newFakeJobs(), errors.New("no such table")
		jobs.due["switched off"] = time.Now()
		var hourly, polls int
		fails := true
		w.Chores = &Chores{Jobs: jobs, All: []*Chore{
			{Name: "retire", Every: time.Hour, Limit: time.Minute, Do: func(context.Context) error {
				if hourly++; fails {
					return broken
				}
				return nil
			}},
			{Name: "poll", Second: 8, Limit: 40 * time.Second, Do: func(ctx context.Context) error {
				polls++
				<-ctx.Done() // it hangs
				return nil
			}},
		}}
		w.add("now", 0)
		w.add("soon", 20*time.Second)
		began := time.Now()
		if err := w.Run(t.Context()); !errors.Is(err, broken) || time.Since(began) != 40*time.Second {
			t.Errorf("the event ends with %v after %s", err, time.Since(began))
		}
		w.wantBegun(t, "now", 0, 0)
		w.wantBegun(t, "soon", 20*time.Second, time.Second)
		if _, isKept := jobs.due["switched off"]; isKept || jobs.nexts["retire"] != (Next{In: time.Minute}) ||
			jobs.nexts["poll"] != (Next{Second: 8}) {
			t.Errorf("the jobs are due again %v, of %v", jobs.nexts, jobs.due)
		}
		fails = false
		for range 10 { // minutes
			_ = w.Run(t.Context())
			time.Sleep(20 * time.Second)
		}
		if hourly != 2 || polls != 11 || jobs.failures["retire"] != 1 || len(jobs.failures) != 1 {
			t.Errorf("it was done %d times hourly and %d times; failures %v", hourly, polls, jobs.failures)
		}
		time.Sleep(time.Hour)
		_ = w.Run(t.Context())
		if hourly != 3 {
			t.Errorf("an hour later it was done %d times", hourly)
		}
	})
}

// TestIdleChore: a chore with nothing to follow is due never, until there is something again. Jobs that cannot be read
// fail the event, and keep no row waiting.
func TestIdleChore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(func(w *world, _ context.Context, id string) error {
			w.done(id, 0)
			return nil
		})
		jobs, isIdle := newFakeJobs(), true
		w.Chores = &Chores{Jobs: jobs, All: []*Chore{{
			Name: "poll", Limit: time.Minute, Do: func(context.Context) error { return nil },
			IsIdle: func(context.Context) (bool, error) { return isIdle, nil },
		}}}
		for _, isIdle = range []bool{true, false} {
			if err := w.Run(t.Context()); err != nil || jobs.nexts["poll"].Never != isIdle {
				t.Errorf("idle %t: it is due again %v: %v", isIdle, jobs.nexts["poll"], err)
			}
		}
		jobs.failing = errors.New("no such table")
		w.add("now", 0)
		if err := w.Run(t.Context()); !errors.Is(err, jobs.failing) {
			t.Errorf("jobs that cannot be read: %v", err)
		}
		w.wantBegun(t, "now", 0, time.Second)
	})
}
