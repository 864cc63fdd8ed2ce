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

	mu   sync.Mutex
	rows map[string]domain.Request
	due  *time.Timer // nil while nothing is counted
}

// CountRefused adds a request that a rate limit refused to the row of its source, which is written within a minute.
func (l *Log) CountRefused(row domain.Request) {
	c := &l.refused
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(sourceOf(row), row, 1)
	if c.due == nil {
		c.due = time.AfterFunc(countFor, func() { _ = l.writeCounted() })
	}
}

func sourceOf(row domain.Request) string {
	return cmp.Or(row.ProjectID, row.DomainID, row.UserID, domain.AddressSource(row.Remote))
}

// add needs the lock.
func (c *counted) add(source string, row domain.Request, n int) {
	if c.rows == nil {
		c.rows = map[string]domain.Request{}
	}
	first, found := c.rows[source]
	if !found && len(c.rows) >= maxCounted {
		source, row.Remote, row.ProjectID, row.DomainID, row.UserID, row.UserName = allOthers, "", "", "", "", ""
		first, found = c.rows[source]
	}
	if !found {
		first = row
		first.Duration, first.Count = 0, 0
	}
	first.Count = min(first.Count+n, math.MaxInt32) // Postgres may be away for days
	c.rows[source] = first
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
	l.refused.writing.Lock()
	defer l.refused.writing.Unlock()
	rows := l.refused.take()
	if len(rows) == 0 {
		return nil
	}
	err := l.insertRows(rows)
	total := 0
	for _, row := range rows {
		total += row.Count
	}
	if err == nil {
		slog.Warn("requests over a rate limit were refused", "requests", total, "sources", len(rows))
		return nil
	}
	slog.Error("refused requests could not be counted in the request log: they are with the next minute's",
		"requests", total, "error", err)
	l.refused.mu.Lock()
	defer l.refused.mu.Unlock()
	for _, row := range rows {
		l.refused.add(sourceOf(row), row, row.Count)
	}
	if l.refused.due == nil {
		l.refused.due = time.AfterFunc(countFor, func() { _ = l.writeCounted() })
	}
	return err
}

// stopCounting writes what is counted, and gives up what cannot be written.
func (l *Log) stopCounting(ctx context.Context) {
	if err := l.writeCounted(); err != nil {
		slog.ErrorContext(ctx, "the number of refused requests of the last minute is lost", "error", err)
		l.refused.take()
	}
}
