package due

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeRow is a row of a fakeStore.
type fakeRow struct {
	id      string
	shares  []string
	due     time.Time // zero = never again
	claimed time.Time // until then
}

// fakeStore is a queue in memory, by the fake clock of synctest. Postgres has its own tests of the statements.
type fakeStore struct {
	mu      sync.Mutex
	rows    []*fakeRow
	claims  int
	nexts   int
	failing error
}

func (s *fakeStore) add(id string, in time.Duration, shares ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows = append(s.rows, &fakeRow{id: id, shares: shares, due: time.Now().Add(in)})
}

func (s *fakeStore) claimable(full []string) (all []*fakeRow) {
	for _, r := range s.rows {
		isFull := slices.ContainsFunc(r.shares, func(share string) bool { return slices.Contains(full, share) })
		if !r.due.IsZero() && !isFull {
			all = append(all, r)
		}
	}
	return all
}

func (s *fakeStore) Claim(_ context.Context, claimFor time.Duration, most int, full []string) (Claimed[string], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims++
	got := Claimed[string]{Claim: domain.NewClaim(), At: time.Now()}
	for _, r := range s.claimable(full) {
		if now := time.Now(); len(got.Rows) < most && !r.due.After(now) && !r.claimed.After(now) {
			r.claimed = now.Add(claimFor)
			got.Rows = append(got.Rows, Row[string]{
				Value: r.id, Shares: r.shares, Renew: func(context.Context) error { return nil },
			})
		}
	}
	return got, s.failing
}

func (s *fakeStore) NextDue(_ context.Context, within time.Duration, full []string) (next *time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nexts++
	for _, r := range s.claimable(full) {
		at := r.due
		if r.claimed.After(at) {
			at = r.claimed
		}
		if left := time.Until(at); left <= within && (next == nil || left < *next) {
			next = &left
		}
	}
	return next, s.failing
}

// done releases a row, which is due again after a pause; 0 = never.
func (s *fakeStore) done(id string, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		if r.id == id {
			r.claimed, r.due = time.Time{}, time.Time{}
			if pause > 0 {
				r.due = time.Now().Add(pause)
			}
		}
	}
}

// world is a runner whose work a test decides.
type world struct {
	*fakeStore
	*Runner[string]

	mu    sync.Mutex
	began map[string]time.Duration // since the begin of the test
}

func newWorld(work func(w *world, ctx context.Context, id string) error) *world {
	w := &world{fakeStore: &fakeStore{}, began: map[string]time.Duration{}}
	began := time.Now()
	w.Runner = &Runner[string]{
		Store: w.fakeStore, ClaimFor: 45 * time.Second, Slots: 8,
		Describe: func(id string) (string, []any) { return "row", []any{"id", id} },
		Work: func(ctx context.Context, _ domain.Claim, id string, _ time.Time) error {
			w.mu.Lock()
			if _, isKnown := w.began[id]; !isKnown {
				w.began[id] = time.Since(began)
			}
			w.mu.Unlock()
			return work(w, ctx, id)
		},
	}
	return w
}

// ticks sends an event when something is due, as the clock does, and each minute.
func (w *world) ticks(t *testing.T, minutes int) {
	t.Helper()
	var all sync.WaitGroup
	for end := time.Now().Add(time.Duration(minutes) * time.Minute); time.Now().Before(end); {
		all.Go(func() {
			if err := w.Run(t.Context()); err != nil {
				t.Errorf("an event: %v", err)
			}
		})
		time.Sleep(w.untilDue(time.Minute))
	}
	all.Wait()
}

// untilDue is the time until a row becomes due, most at most.
func (w *world) untilDue(most time.Duration) time.Duration {
	w.fakeStore.mu.Lock()
	defer w.fakeStore.mu.Unlock()
	for _, r := range w.rows {
		if in := time.Until(r.due); !r.due.IsZero() && in > 0 {
			most = min(most, in)
		}
	}
	return most
}

func (w *world) wantBegun(t *testing.T, id string, due, late time.Duration) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, isBegun := w.began[id]; !isBegun || at < due || at > due+late {
		t.Errorf("%s was due at %s and begun %t at %s", id, due, isBegun, at)
	}
}

// TestSlowPassKeepsNoOther: while a pass takes minutes, each row that becomes due is begun within a second, also by
// the events after the one that the slow pass belongs to.
func TestSlowPassKeepsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(func(w *world, _ context.Context, id string) error {
			if id == "slow" {
				time.Sleep(3 * time.Minute)
			}
			w.done(id, 0)
			return nil
		})
		w.add("slow", 0)
		for n := range 30 {
			w.add(strconv.Itoa(n), time.Duration(7*n)*time.Second)
		}
		w.ticks(t, 5)
		for n := range 30 {
			w.wantBegun(t, strconv.Itoa(n), time.Duration(7*n)*time.Second, time.Second)
		}
	})
}

// TestRowMadeMeanwhile: a row that is stored while an event has nothing else to do than to wait for passes is begun
// within a second, and so is the next step of a row.
func TestRowMadeMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		steps := 0
		w := newWorld(func(w *world, _ context.Context, id string) error {
			switch {
			case id == "slow":
				time.Sleep(50 * time.Second)
				w.done(id, 0)
			case steps < 10:
				steps++
				w.done(id, 1500*time.Millisecond)
			default:
				w.done(id, 0)
			}
			return nil
		})
		w.add("slow", 0)
		go func() {
			time.Sleep(20*time.Second + 300*time.Millisecond)
			w.add("new", 0)
		}()
		w.ticks(t, 1)
		w.wantBegun(t, "new", 20*time.Second+300*time.Millisecond, time.Second)
		if steps != 10 {
			t.Errorf("%d of its 10 steps were done", steps)
		}
	})
}

// TestRest: an event that begins no more passes says so while its last one still runs, and once.
func TestRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(func(w *world, _ context.Context, id string) error {
			time.Sleep(3 * time.Minute)
			w.done(id, 0)
			return nil
		})
		w.ClaimFor = 10 * time.Minute
		var rests []time.Duration
		began := time.Now()
		ctx := WithRest(t.Context(), func() { rests = append(rests, time.Since(began).Truncate(time.Second)) })
		w.add("slow", 0)
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
		if err := w.Run(ctx); err != nil { // nothing is running
			t.Error(err)
		}
		if took := time.Since(began); len(rests) != 1 || rests[0] < 59*time.Second || rests[0] > time.Minute ||
			took != 3*time.Minute {
			t.Errorf("the rest was planned at %v, and the events took %s", rests, took)
		}
	})
}

// TestSlots: passes of all events together use at most the slots, and those of a share a quarter of them. A slot that
// becomes free is used immediately, without asking Postgres meanwhile for what has no slot.
func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := map[string]int{}, map[string]int{}
		w := newWorld(func(w *world, _ context.Context, id string) error {
			share := id[:1]
			mu.Lock()
			for _, name := range []string{"all", share} {
				running[name]++
				most[name] = max(most[name], running[name])
			}
			mu.Unlock()
			time.Sleep(25 * time.Second)
			mu.Lock()
			running["all"]--
			running[share]--
			mu.Unlock()
			w.done(id, 0)
			return nil
		})
		for n := range 40 { // the hanging ones are due first
			w.add(fmt.Sprint("hangs ", n), 0, "hangs")
		}
		for n := range 20 {
			w.add(fmt.Sprint("other ", n), 10*time.Second, fmt.Sprint("project ", n))
		}
		w.ticks(t, 12)
		if most["all"] != 8 || most["h"] != 2 {
			t.Errorf("at most there were %v passes", most)
		}
		w.wantBegun(t, "other 0", 10*time.Second, time.Second)
		w.wantBegun(t, "other 19", 10*time.Second, 76*time.Second) // 6 slots, 25 s each
		if w.nexts > 1500 {
			t.Errorf("%d reads of what is due in 12 minutes", w.nexts)
		}
	})
}

// TestEventEnds with nothing due soon, with an error of the store, with its context, and with its process.
func TestEventEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(func(w *world, _ context.Context, id string) error {
			w.done(id, 0)
			return nil
		})
		began := time.Now()
		if err := w.Run(t.Context()); err != nil || time.Since(began) != 0 || w.nexts != 1 || w.claims != 0 {
			t.Errorf("nothing due: %v after %s, %d and %d statements", err, time.Since(began), w.nexts, w.claims)
		}
		w.add("later", 50*time.Second)
		if err := w.Run(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("nothing due soon: %v after %s", err, time.Since(began))
		}
		w.add("soon", 12*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := w.Run(ctx); err != nil || time.Since(began) != 10*time.Second {
			t.Errorf("its context ends: %v after %s", err, time.Since(began))
		}
		if err := w.Run(t.Context()); err != nil || time.Since(began).Round(time.Second) != 12*time.Second {
			t.Errorf("what is due soon: %v after %s", err, time.Since(began))
		}
		w.wantBegun(t, "soon", 12*time.Second, time.Second)
		w.failing = errors.New("postgres is unavailable")
		if err := w.Run(t.Context()); !errors.Is(err, w.failing) {
			t.Errorf("with a broken store: %v", err)
		}
	})
}

// TestPass: the work of a pass ends with its claim, with its limit, and when another replica has the row. Only work
// whose claim lasts is saved, and work that has reached its limit is saved with that reason.
func TestPass(t *testing.T) {
	t.Parallel()
	hangs := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for name, tc := range map[string]struct {
		renew  func(ctx context.Context) error
		limit  time.Duration
		age    time.Duration // of the claim when the pass begins
		took   time.Duration
		saved  string
		result error
	}{
		"it reaches its limit": {
			renew: func(context.Context) error { return nil }, limit: 3 * time.Minute, took: 3 * time.Minute,
			saved: "the work did not end within 3m0s",
		},
		"another replica has the row": {
			renew: func(context.Context) error { return domain.ErrFenced }, limit: time.Hour, took: 10 * time.Second,
			result: domain.ErrFenced,
		},
		"Postgres does not answer": {
			renew: hangs, limit: time.Hour, took: 30 * time.Second, result: errClaimEnds,
		},
		"Postgres refuses": {
			renew: func(context.Context) error { return errors.New("no") }, limit: time.Hour, took: 30 * time.Second,
			result: errClaimEnds,
		},
		"it begins late": {
			renew: hangs, limit: time.Hour, age: 25 * time.Second, took: 5 * time.Second, result: errClaimEnds,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				saved, began := "", time.Now()
				claim := domain.NewClaim()
				claim.Requested = began.Add(-tc.age)
				kept, stop := Keep(t.Context(), claim, 40*time.Second, tc.renew)
				defer stop()
				err := Pass{
					Limit: tc.limit, Work: hangs,
					Save: func(ctx context.Context, failure error) error {
						if ctx.Err() != nil {
							t.Error("it is saved with a context that has ended")
						}
						saved = apperr.As(failure).Message
						return nil
					},
				}.Run(kept)
				if !errors.Is(err, tc.result) || saved != tc.saved || time.Since(began) != tc.took {
					t.Errorf("%v after %s, saved %q; want %v after %s, %q", err, time.Since(began), saved, tc.result,
						tc.took, tc.saved)
				}
			})
		})
	}
}
