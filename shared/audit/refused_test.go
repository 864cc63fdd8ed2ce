package audit

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

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
