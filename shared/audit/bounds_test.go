package audit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestTheQueueIsBounded fills it while nothing can be written: more is refused at once, and what was taken is
// written in the end.
func TestTheQueueIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{takes: time.Second}
		l := New(d, d)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		taken := 0
		for range writers { // each takes one row and is busy with it
			_ = l.Record(gone, row("/"))
			taken++
			synctest.Wait()
		}
		for range maxWaiting {
			if err := l.Record(gone, row("/")); apperr.As(err).RetryAfter != 0 ||
				apperr.CodeOf(err) != apperr.Unavailable {
				t.Fatalf("a caller that hung up got %v", err)
			}
			taken++
		}
		began := time.Now()
		err := l.Record(t.Context(), row("one too many"))
		if e := apperr.As(err); e.Code != apperr.Unavailable || e.RetryAfter <= 0 || time.Since(began) > 0 {
			t.Errorf("got %v, again in %s, after %s", err, e.RetryAfter, time.Since(began))
		}
		if err := l.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if len(d.written) != taken {
			t.Errorf("%d rows were taken, %d are written", taken, len(d.written))
		}
		if err := l.Record(t.Context(), row("/")); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestRecordEndsWithItsContext: the caller gets an answer in time, and the row may still be written.
func TestRecordEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{takes: time.Second}
		l := New(d, d)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		began, r := time.Now(), row("/")
		err := l.Record(ctx, r)
		if apperr.CodeOf(err) != apperr.Unavailable || time.Since(began) != 300*time.Millisecond {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
		time.Sleep(time.Second)
		if d.has(r.ID) != 1 {
			t.Error("the row that waited is lost")
		}
	})
}

// TestASilentDisk is given up on: no request waits longer than one COPY may take.
func TestASilentDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{takes: time.Hour}
		l := New(d, d)
		began := time.Now()
		for _, err := range record(t, l, d, rows(10)) {
			if apperr.CodeOf(err) != apperr.Unavailable {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(began); took > 2*writeTimeout {
			t.Errorf("it took %s", took)
		}
	})
}

func TestFlush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{takes: time.Second}
		l := New(d, d)
		if err := l.Flush(t.Context()); err != nil {
			t.Errorf("nothing waits: %v", err)
		}
		list := rows(20)
		go record(t, l, d, list)
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := l.Flush(short); err == nil {
			t.Error("it did not wait")
		}
		if err := l.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		for _, r := range list {
			if d.has(r.ID) != 1 {
				t.Fatal("a row is not written after Flush")
			}
		}
	})
}
