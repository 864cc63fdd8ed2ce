package audit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func refusedOf(remote, project string) domain.Request {
	return domain.Request{
		ID: uuid.New(), Path: "/v1/servers", Status: 429, Remote: remote, ProjectID: project, Duration: time.Second,
	}
}

// numbers are the rows' numbers by project and address.
func numbers(rows []domain.Request) map[string]int {
	found := map[string]int{}
	for _, r := range rows {
		found[r.ProjectID+"/"+r.Remote] += r.Count
	}
	return found
}

// TestRefusedRequestsShareARow by source and minute, whatever their number.
func TestRefusedRequestsShareARow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		l := New(d, d)
		for minute := range 2 {
			for n := range 1000 {
				l.CountRefused(refusedOf("192.0.2.1", ""))
				l.CountRefused(refusedOf(fmt.Sprintf("2001:db8::%x", n), ""))
				l.CountRefused(refusedOf(fmt.Sprintf("192.0.2.%d", n%250), "p1"))
			}
			time.Sleep(countFor + time.Second)
			synctest.Wait()
			if len(d.batches) != minute+1 || d.batches[minute] != 3 {
				t.Fatalf("minute %d: the COPYs were %v", minute, d.batches)
			}
		}
		got := numbers(d.rows)
		if got["/192.0.2.1"] != 2000 || got["/2001:db8::0"] != 2000 || got["p1/192.0.2.0"] != 2000 {
			t.Errorf("got %v", got)
		}
		for _, r := range d.rows {
			if r.Duration != 0 || r.Path != "/v1/servers" || r.ID == uuid.Nil {
				t.Errorf("got %+v", r)
			}
		}
	})
}

// TestSourcesAreBounded: those beyond maxCounted share a row that names none of them.
func TestSourcesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		l := New(d, d)
		for n := range 3 * maxCounted {
			l.CountRefused(refusedOf(fmt.Sprintf("10.%d.%d.1", n/250, n%250), ""))
		}
		if err := l.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := numbers(d.rows); len(d.rows) != maxCounted+1 || got["/"] != 2*maxCounted {
			t.Errorf("%d rows, %d without an address", len(d.rows), got["/"])
		}
	})
}

// TestNumbersSurviveAnOutage: what cannot be written is part of the next minute's rows.
func TestNumbersSurviveAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var isFull atomic.Bool
		isFull.Store(true)
		d := &disk{fail: func([]domain.Request) error {
			if isFull.Load() {
				return errors.New("no space left")
			}
			return nil
		}}
		l := New(d, d)
		l.CountRefused(refusedOf("192.0.2.1", ""))
		time.Sleep(countFor + time.Second)
		synctest.Wait()
		l.CountRefused(refusedOf("192.0.2.1", ""))
		isFull.Store(false)
		time.Sleep(countFor)
		synctest.Wait()
		if got := numbers(d.rows); len(d.rows) != 1 || got["/192.0.2.1"] != 2 {
			t.Errorf("got %v", got)
		}
	})
}

// TestNumbersOfALostAnswer are counted once, whether the rows were stored or not, and only when that is known.
func TestNumbersOfALostAnswer(t *testing.T) {
	t.Parallel()
	lost := errors.New("unexpected EOF")
	for name, fail := range map[string]func([]domain.Request) error{
		"stored": nil, "not stored": func([]domain.Request) error { return lost },
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &disk{fail: fail, commit: lost, committal: lost}
			l := New(d, d)
			minute := func() {
				time.Sleep(countFor)
				synctest.Wait()
			}
			l.CountRefused(refusedOf("192.0.2.1", ""))
			l.CountRefused(refusedOf("192.0.2.2", ""))
			minute()
			d.set(func() { d.fail, d.commit = nil, nil })
			l.CountRefused(refusedOf("192.0.2.1", ""))
			minute()
			if len(d.batches) != 1 {
				t.Errorf("%s: written before it is known: %v", name, d.batches)
			}
			d.set(func() { d.committal = nil })
			for range 3 {
				minute()
			}
			if got := numbers(d.rows); got["/192.0.2.1"] != 2 || got["/192.0.2.2"] != 1 || len(d.batches) != 2 {
				t.Errorf("%s: got %v in the COPYs %v", name, got, d.batches)
			}
		})
	}
}

// TestFlushWritesNumbers before a process ends.
func TestFlushWritesNumbers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		l := New(d, d)
		l.CountRefused(refusedOf("192.0.2.1", ""))
		if err := l.Flush(t.Context()); err != nil || len(d.rows) != 1 || d.rows[0].Count != 1 {
			t.Errorf("got %v, %+v", err, d.rows)
		}
		time.Sleep(2 * countFor)
		synctest.Wait()
		if len(d.batches) != 1 {
			t.Errorf("the COPYs were %v", d.batches)
		}
	})
}

// TestTheQueueIsBounded fills it while nothing can be written: more is refused immediately, and what was taken is
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
