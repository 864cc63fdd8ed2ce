package audit

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
