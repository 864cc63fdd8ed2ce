// Package audit keeps the request log's promise: no answer leaves before its row is durable, and nothing is
// sent to OpenStack while rows cannot be written.
//
// Rows wait for no timer. While one COPY is on its way, requests that finish wait for the next one together, so the
// cost of a commit is shared exactly when there are many to share it. Only requests that a rate limit refused
// before they were served are counted first: they share one row per source and minute.
package audit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// store is postgres.Requests; schema reports whether the database is there and new enough.
type (
	store interface {
		Insert(ctx context.Context, rows []domain.Request) error
		InsertOnce(ctx context.Context, rows []domain.Request) (transaction string, err error)
		Committed(ctx context.Context, transaction string) (bool, error)
	}
	schema interface {
		Check(ctx context.Context) error
	}
)

// The bounds of a Log.
const (
	maxWaiting   = 8192            // rows in the queue; more are refused, none is dropped
	maxBatch     = 1024            // rows in one COPY
	writeTimeout = 5 * time.Second // for one COPY or one check
	writers      = 2               // COPYs at once: the second fills while the first waits for the disk
)

// Log is the request log of one process. It uses no goroutine while nothing waits.
type Log struct {
	store store
	check gate

	refused counted

	mu      sync.Mutex
	waiting []*entry
	running int
	idle    sync.Cond
}

type entry struct {
	row  domain.Request
	done chan error
}

// New makes a Log that writes to the store.
func New(rows store, database schema) *Log {
	l := &Log{store: rows}
	l.idle.L = &l.mu
	l.check.check = database.Check
	return l
}

// Ready reports whether the log can be written right now, by a check that began after the call: a request that
// is let through was preceded by an answer of Postgres. Calls that wait at the same time share one check.
func (l *Log) Ready(ctx context.Context) error { return l.check.wait(ctx) }

// Record writes the row and returns when it is durable. When it fails, the row may not be there and the
// answer must not leave.
func (l *Log) Record(ctx context.Context, row domain.Request) error {
	e := &entry{row: row, done: make(chan error, 1)}
	l.mu.Lock()
	if len(l.waiting) >= maxWaiting {
		l.mu.Unlock()
		err := apperr.New(apperr.Unavailable, "too many requests wait for the request log")
		err.RetryAfter = time.Second
		return err
	}
	l.waiting = append(l.waiting, e)
	if l.running < writers {
		l.running++
		go l.write()
	}
	l.mu.Unlock()
	select {
	case err := <-e.done:
		return err
	case <-ctx.Done():
		return apperr.Wrap(apperr.Unavailable, ctx.Err(), "the request log did not answer in time")
	}
}

// write takes whatever waits, writes it, and ends when nothing is left.
func (l *Log) write() {
	for {
		batch := l.take()
		if batch == nil {
			return
		}
		l.insert(batch)
	}
}

func (l *Log) take() []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.running--
		if l.running == 0 {
			l.idle.Broadcast()
		}
		return nil
	}
	n := min(len(l.waiting), maxBatch)
	batch := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	return batch
}

func (l *Log) insert(batch []*entry) {
	rows := make([]domain.Request, len(batch))
	for i, e := range batch {
		rows[i] = e.row
	}
	err := l.insertRows(rows)
	if apperr.CodeOf(err) == apperr.Internal && len(batch) > 1 {
		// One row that Postgres cannot take must not refuse the others.
		for i, e := range batch {
			e.done <- unwritten(l.insertRows(rows[i : i+1]))
		}
		return
	}
	for _, e := range batch {
		e.done <- unwritten(err)
	}
}

// unwritten is the answer to a caller whose row could not be written.
func unwritten(err error) error {
	if err == nil || apperr.CodeOf(err) == apperr.Unavailable {
		return err
	}
	return apperr.Wrap(apperr.Unavailable, err, "the request log cannot be written")
}

func (l *Log) insertRows(rows []domain.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	return l.store.Insert(ctx, rows)
}

// Flush writes what is counted, and waits until nothing waits to be written.
func (l *Log) Flush(ctx context.Context) error {
	l.stopCounting(ctx)
	flushed := make(chan struct{})
	go func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for l.running > 0 {
			l.idle.Wait()
		}
		close(flushed)
	}()
	select {
	case <-flushed:
		return nil
	case <-ctx.Done():
		return errors.New("the request log was not written out in time")
	}
}
