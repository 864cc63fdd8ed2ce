package audit

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// disk is a store whose COPY takes a while, and may fail. Its time is that of the test's bubble.
type disk struct {
	takes time.Duration
	fail  func(rows []domain.Request) error

	mu      sync.Mutex
	written map[uuid.UUID]int
	rows    []domain.Request
	batches []int // the sizes of the COPYs that began
	now     int   // COPYs that run
	most    int

	committed         map[string]bool // by transaction
	commit, committal error           // of InsertOnce and of Committed, whether the rows are written or not
}

func (d *disk) Insert(ctx context.Context, rows []domain.Request) error {
	d.mu.Lock()
	d.batches = append(d.batches, len(rows))
	d.now++
	d.most = max(d.most, d.now)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.now--
		d.mu.Unlock()
	}()
	select {
	case <-time.After(d.takes):
	case <-ctx.Done():
		return apperr.Wrap(apperr.Unavailable, ctx.Err(), "the database is not available")
	}
	d.mu.Lock()
	fail := d.fail
	d.mu.Unlock()
	if fail != nil {
		if err := fail(rows); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.written == nil {
		d.written = map[uuid.UUID]int{}
	}
	for _, r := range rows {
		d.written[r.ID]++
	}
	d.rows = append(d.rows, rows...)
	return nil
}

func (d *disk) InsertOnce(ctx context.Context, rows []domain.Request) (transaction string, err error) {
	err = d.Insert(ctx, rows)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.committed == nil {
		d.committed = map[string]bool{}
	}
	transaction = strconv.Itoa(len(d.batches))
	d.committed[transaction] = err == nil
	return transaction, cmp.Or(err, d.commit)
}

func (d *disk) Committed(_ context.Context, transaction string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.committed[transaction], d.committal
}

// set changes what the next writes do.
func (d *disk) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

func (d *disk) has(id uuid.UUID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.written[id]
}

// Check makes a disk a schema that is always there.
func (d *disk) Check(context.Context) error { return nil }

func row(path string) domain.Request { return domain.Request{ID: uuid.New(), Path: path} }

// record writes n rows concurrently and gives each row's error, in order. It checks that none returns before its row
// is there.
func record(t *testing.T, l *Log, d *disk, rows []domain.Request) []error {
	t.Helper()
	errs := make([]error, len(rows))
	var all sync.WaitGroup
	for i, r := range rows {
		all.Go(func() {
			errs[i] = l.Record(t.Context(), r)
			if n := d.has(r.ID); errs[i] == nil && n != 1 {
				t.Errorf("Record returned when its row was written %d times", n)
			}
		})
	}
	all.Wait()
	return errs
}

func rows(n int) []domain.Request {
	list := make([]domain.Request, n)
	for i := range list {
		list[i] = row("/v1/servers")
	}
	return list
}

func TestRecordSharesCommits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ rows, copies int }{
		"one":               {1, 1},
		"a few":             {100, 3},                  // one, another while it runs, and the rest together
		"more than a batch": {2*maxBatch + 500, 2 + 3}, // the first two take whatever is there
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &disk{takes: 10 * time.Millisecond}
				l := New(d, d)
				for _, err := range record(t, l, d, rows(tc.rows)) {
					if err != nil {
						t.Fatal(err)
					}
				}
				if len(d.batches) > tc.copies || d.most > writers {
					t.Errorf("%d rows took the COPYs %v, up to %d concurrently", tc.rows, d.batches, d.most)
				}
				for _, n := range d.batches {
					if n > maxBatch {
						t.Errorf("one COPY had %d rows", n)
					}
				}
				synctest.Wait()
				if l.running != 0 || len(l.waiting) != 0 { // and the bubble holds us to it: no goroutine is left
					t.Errorf("%d writers are left, %d rows wait", l.running, len(l.waiting))
				}
			})
		})
	}
}

// TestTwoWritersAtMost keeps rows coming one by one, faster than they are written.
func TestTwoWritersAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{takes: 10 * time.Millisecond}
		l := New(d, d)
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				if err := l.Record(t.Context(), row("/")); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		if d.most != writers || len(d.written) != 1000 || len(d.batches) > 1000/5+2 {
			t.Errorf("%d concurrent COPYs, %d in all for %d rows", d.most, len(d.batches), len(d.written))
		}
	})
}

// TestOneBadRow has a row that Postgres cannot take: only its own request is refused.
func TestOneBadRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{takes: time.Millisecond, fail: func(rows []domain.Request) error {
			for _, r := range rows {
				if r.Path == "bad" {
					return errors.New("invalid byte sequence")
				}
			}
			return nil
		}}
		l := New(d, d)
		list := rows(50)
		list[20].Path, list[30].Path = "bad", "bad"
		for i, err := range record(t, l, d, list) {
			if bad := list[i].Path == "bad"; bad && apperr.CodeOf(err) != apperr.Unavailable || !bad && err != nil {
				t.Errorf("row %d (%s): got %v", i, list[i].Path, err)
			}
		}
		if len(d.written) != 48 {
			t.Errorf("%d rows are written, want 48", len(d.written))
		}
	})
}

// TestWhatTheStoreSays becomes Unavailable for all of the batch, and is not tried row by row when it is not
// about a row.
func TestWhatTheStoreSays(t *testing.T) {
	t.Parallel()
	unavailable := apperr.New(apperr.Unavailable, "the database is not available")
	unavailable.RetryAfter = 7 * time.Second
	for name, tc := range map[string]struct {
		err    error
		rowly  bool
		pause  time.Duration
		reason string
	}{
		"Postgres is unavailable": {unavailable, false, 7 * time.Second, "the database is not available"},
		"a doubled id": {
			apperr.New(apperr.Conflict, "it exists already"), false, 0, "the request log cannot be written",
		},
		"anything else": {errors.New("permission denied"), true, 0, "the request log cannot be written"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &disk{takes: 10 * time.Millisecond, fail: func([]domain.Request) error { return tc.err }}
				l := New(d, d)
				for _, err := range record(t, l, d, rows(40)) {
					if e := apperr.As(err); e.Code != apperr.Unavailable || e.RetryAfter != tc.pause ||
						e.Message != tc.reason {
						t.Errorf("got %s %q, again in %s", e.Code, e.Message, e.RetryAfter)
					}
				}
				if len(d.batches) > 3 != tc.rowly {
					t.Errorf("the COPYs were %v", d.batches)
				}
			})
		})
	}
}

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

// TestReadyIsNeverOld lets the world change while a check runs: a check after the change reports it.
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
		time.Sleep(2 * w.takes) // a check that no one waits for any more ends too
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
