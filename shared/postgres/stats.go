package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Stats are the hourly counts of servers, one row per project and hour.
type Stats struct{ DB *DB }

const insertHourSQL = `
insert into stats_hourly (project_id, hour, domain_id, running, total, by_status, source)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (project_id, hour) do nothing`

// Insert stores counts. An hour that a project has already stays as it is.
func (s Stats) Insert(ctx context.Context, counts []domain.HourCount) error {
	batch := &pgx.Batch{}
	for _, c := range counts {
		by := c.ByStatus
		if by == nil {
			by = map[string]int{}
		}
		batch.Queue(insertHourSQL, c.ProjectID, c.Hour, c.DomainID, c.Running, c.Total, by, c.Source)
	}
	return s.DB.inTx(ctx, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
}

// Known says which hours since from each project has.
func (s Stats) Known(ctx context.Context, from time.Time) (map[string]map[time.Time]bool, error) {
	rows, _ := s.DB.pool.Query(ctx, "select project_id, hour from stats_hourly where hour >= $1", from)
	known := map[string]map[time.Time]bool{}
	var project string
	var hour time.Time
	_, err := pgx.ForEachRow(rows, []any{&project, &hour}, func() error {
		if known[project] == nil {
			known[project] = map[time.Time]bool{}
		}
		known[project][hour.UTC()] = true
		return nil
	})
	return known, classify(err)
}

const seeProjectSQL = `
insert into stats_projects as p (project_id, domain_id, first_hour, last_hour) values ($1, $2, $3, $4)
on conflict (project_id) do update
set last_hour = greatest(p.last_hour, $4), first_hour = least(p.first_hour, $3), domain_id = $2`

// See notes that the projects exist and are to be counted from first to last.
func (s Stats) See(ctx context.Context, projects []domain.Project, first, last time.Time) error {
	batch := &pgx.Batch{}
	for _, p := range projects {
		batch.Queue(seeProjectSQL, p.ID, p.DomainID, first, last)
	}
	return s.DB.inTx(ctx, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
}

const seriesSQL = `
with hours as (
    select generate_series($3::timestamptz, $4::timestamptz, interval '1 hour') as hour
), expected as (
    select h.hour, count(*) as n
    from hours h join stats_projects p on h.hour between p.first_hour and p.last_hour
    where ($1 = '' or p.project_id = $1) and ($2 = '' or p.domain_id = $2)
    group by h.hour
), counted as (
    select * from stats_hourly
    where hour between $3 and $4 and ($1 = '' or project_id = $1) and ($2 = '' or domain_id = $2)
), sums as (
    select hour, count(*) as n, sum(running)::int as running, sum(total)::int as total,
           bool_or(source = 'rebuilt') as rebuilt
    from counted group by hour
), statuses as (
    select hour, jsonb_object_agg(key, n) as by_status
    from (select hour, key, sum(value::int)::int as n
          from counted, jsonb_each_text(by_status) group by hour, key) each
    group by hour
)
select h.hour, s.running, s.total, coalesce(t.by_status, '{}'),
       case when s.hour is null then 'missing' when s.rebuilt then 'rebuilt' else 'sampled' end
from hours h
left join expected e on e.hour = h.hour
left join sums s on s.hour = h.hour and s.n >= coalesce(e.n, 1)
left join statuses t on t.hour = s.hour
order by h.hour`

// Series reads the hours from first to last (both full hours) of a view: one entry each, oldest first.
// An hour for which a project of the view is missing is missing as a whole: a sum that lacks a project
// would be too low.
func (s Stats) Series(ctx context.Context, v domain.View, first, last time.Time) ([]domain.HourStat, error) {
	project, domainID, err := filter(v)
	if err != nil {
		return nil, err
	}
	rows, _ := s.DB.pool.Query(ctx, seriesSQL, project, domainID, first, last)
	series, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.HourStat])
	for i := range series {
		series[i].Hour = series[i].Hour.UTC()
	}
	return series, classify(err)
}
