// Package audit keeps the request log's promise: no answer leaves before its row is durable, and nothing is
// sent to OpenStack while rows cannot be written.
//
// Rows wait for no timer. While one COPY is on its way, requests that finish wait for the next one together, so the
// cost of a commit is shared exactly when there are many to share it. Only requests that a rate limit refused
// before they were served are counted first: they share one row per source and minute.
package audit

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
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
	writers      = 2               // concurrent COPYs: the second fills while the first waits for the disk
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

// gate shares one check among all who wait for it. A check that is under way counts only for those who came before it
// began.
type gate struct {
	check func(context.Context) error
	runs  flow.Coalescer

	mu   sync.Mutex
	next *verdict
}

type verdict struct {
	done chan struct{}
	err  error
}

func (g *gate) wait(ctx context.Context) error {
	mine := g.join()
	if run := g.runs.Begin(); run != nil {
		go g.run(run) //nolint:gosec // no one waiter's context may end the check of all
	}
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return apperr.Wrap(apperr.Timeout, ctx.Err(), "the database did not answer in time")
	}
}

// join is the verdict of the next check.
func (g *gate) join() *verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		g.next = &verdict{done: make(chan struct{})}
	}
	return g.next
}

func (g *gate) run(run *flow.Run) {
	for ended := false; !ended; ended = run.Done() {
		g.mu.Lock()
		current := g.next
		g.next = nil
		g.mu.Unlock()
		if current == nil { // the last check has served the requester of this one
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		current.err = g.check(ctx)
		cancel()
		close(current.done)
	}
}

// The bounds of what is counted.
const (
	countFor   = time.Minute // of one row
	maxCounted = 1000        // sources in one minute; those beyond share one row without an address
	allOthers  = ""          // the source of that row
)

// counted are the requests of the last minute that a rate limit refused, by source. A row of each would let anybody
// fill the disk without a token. A replica that dies loses a minute of numbers.
type counted struct {
	writing sync.Mutex // held by who writes: a process that ends waits for the rows that are on their way
	unknown unanswered // needs writing

	mu   sync.Mutex
	rows map[string]domain.Request
	due  *time.Timer // nil while nothing is to be written
}

// unanswered are rows that may be stored: the response to their transaction was lost.
type unanswered struct {
	transaction string
	rows        []domain.Request
}

// CountRefused adds a request that a rate limit refused to the row of its source, which is written within a minute.
func (l *Log) CountRefused(row domain.Request) {
	row.Duration, row.Count = 0, 1
	l.count(row)
}

// count adds rows to those that are written within a minute.
func (l *Log) count(rows ...domain.Request) {
	c := &l.refused
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, row := range rows {
		c.add(row)
	}
	if c.due == nil {
		c.due = time.AfterFunc(countFor, func() { _ = l.writeCounted() })
	}
}

// add needs the lock.
func (c *counted) add(row domain.Request) {
	if c.rows == nil {
		c.rows = map[string]domain.Request{}
	}
	source := cmp.Or(row.ProjectID, row.DomainID, row.UserID, domain.AddressSource(row.Remote))
	first, found := c.rows[source]
	if !found && len(c.rows) >= maxCounted {
		source, row.Remote, row.ProjectID, row.DomainID, row.UserID, row.UserName = allOthers, "", "", "", "", ""
		first, found = c.rows[source]
	}
	if found {
		first.Count = min(first.Count+row.Count, math.MaxInt32) // Postgres may be unavailable for days
		row = first
	}
	c.rows[source] = row
}

func (c *counted) take() []domain.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows := slices.Collect(maps.Values(c.rows))
	for i := range rows {
		rows[i].ID = uuid.Must(uuid.NewV7()) // in the order of the rows that are written now
	}
	if c.due != nil {
		c.due.Stop()
	}
	c.rows, c.due = nil, nil
	return rows
}

// writeCounted writes what is counted. What cannot be written is part of the next minute's rows.
func (l *Log) writeCounted() error {
	c := &l.refused
	c.writing.Lock()
	defer c.writing.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := l.settle(ctx)
	rows, transaction := c.take(), ""
	if err == nil && len(rows) > 0 {
		transaction, err = l.store.InsertOnce(ctx, rows)
	}
	if err == nil {
		if len(rows) > 0 {
			slog.Warn("requests over a rate limit were refused", "requests", total(rows), "sources", len(rows))
		}
		return nil
	}
	if transaction != "" {
		c.unknown, rows = unanswered{transaction, rows}, nil
	}
	slog.Error("refused requests could not be counted in the request log: they are with the next minute's",
		"requests", total(rows)+total(c.unknown.rows), "error", err)
	l.count(rows...)
	return err
}

// settle finds out whether unanswered rows are stored. Those that are not are counted again.
func (l *Log) settle(ctx context.Context) error {
	unknown := l.refused.unknown
	if unknown.transaction == "" {
		return nil
	}
	isStored, err := l.store.Committed(ctx, unknown.transaction)
	if err != nil {
		return err
	}
	l.refused.unknown = unanswered{}
	if !isStored {
		l.count(unknown.rows...)
	}
	return nil
}

func total(rows []domain.Request) (n int) {
	for _, row := range rows {
		n += row.Count
	}
	return n
}

// stopCounting writes what is counted, and gives up what cannot be written.
func (l *Log) stopCounting(ctx context.Context) {
	if err := l.writeCounted(); err != nil {
		slog.ErrorContext(ctx, "the number of refused requests of the last minute is lost", "error", err)
		l.refused.take()
	}
}
