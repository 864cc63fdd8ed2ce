package stats

import (
	"context"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// requestStore is the request log. Tests fake it to fail in the middle of an export.
type requestStore interface {
	List(ctx context.Context, q domain.RequestQuery) ([]domain.Request, error)
}

type service struct {
	stats    postgres.Stats
	requests requestStore
	clock    *postgres.DB
}

// series are consecutive hours; unknown ones are in it, as missing.
type series struct {
	view  domain.View
	hours []domain.HourStat
}

func (s series) complete() bool {
	return !slices.ContainsFunc(s.hours, func(h domain.HourStat) bool { return h.Source == domain.Missing })
}

// Last reads the last n full hours of a view, the newest being the one that began last by the database's clock.
func (s service) Last(ctx context.Context, v domain.View, n int) (series, error) {
	now, err := s.clock.Now(ctx)
	if err != nil {
		return series{}, err
	}
	last := now.Truncate(time.Hour)
	hours, err := s.stats.Series(ctx, v, last.Add(-time.Duration(n-1)*time.Hour), last)
	return series{view: v, hours: hours}, err
}

// exportPage is how many rows of an export are in memory together.
const exportPage = 1000

// exportPage reads the next rows of an export, and moves its marker behind them. left is how many are still to come
// at most; 0 or less = all.
func (s service) exportPage(ctx context.Context, q *domain.RequestQuery, left int) ([]domain.Request, error) {
	q.Limit = exportPage
	if left > 0 {
		q.Limit = min(left, exportPage)
	}
	page, err := s.requests.List(ctx, *q)
	if err == nil && len(page) > 0 {
		q.Marker = page[len(page)-1].ID
	}
	return page, err
}
