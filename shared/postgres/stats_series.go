package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// isExpected says that the project p has to be counted in the hour h.
const isExpected = "h.hour between p.first_hour and p.last_hour and not p.gaps @> h.hour"

// The sums of a view's hours are kept (Summarize), but for those of one project. Only the other hours are added up.
const seriesSQL = `
with hours as (
    select generate_series($3::timestamptz, $4::timestamptz, interval '1 hour') as hour
), kept as materialized (
    select * from stats_sums where $1 = '' and domain_id = $2 and hour between $3 and $4
), open as materialized (
    select hour from hours where hour not in (select hour from kept)
), counted as (
    select * from stats_hourly
    where hour = any(array(select hour from open)) and ($1 = '' or project_id = $1) and ($2 = '' or domain_id = $2)
), lacking as (
    select h.hour
    from open h join stats_projects p on ` + isExpected + `
    left join counted c on c.project_id = p.project_id and c.hour = h.hour
    where ($1 = '' or p.project_id = $1) and ($2 = '' or p.domain_id = $2) and c.hour is null
    group by h.hour
), sums as (
    select hour, sum(running)::int as running, sum(total)::int as total, sum(uncertain)::int as uncertain,
           bool_or(source = 'rebuilt') as rebuilt, bool_and(settled) as settled
    from counted group by hour
), statuses as (
    select hour, jsonb_object_agg(key, n) as by_status
    from (select hour, key, sum(value::int)::int as n
          from counted, jsonb_each_text(by_status) group by hour, key) each
    group by hour
), complete as (
    select hour, running, total, uncertain, rebuilt, settled, by_status from kept where complete
    union all
    select s.hour, s.running, s.total, s.uncertain, s.rebuilt, s.settled, t.by_status
    from sums s left join statuses t using (hour) where s.hour not in (select hour from lacking)
)
select h.hour, s.running, s.total, coalesce(s.by_status, '{}') as by_status, coalesce(s.uncertain, 0) as uncertain,
       case when s.hour is null then 'missing' when s.rebuilt then 'rebuilt' else 'sampled' end as source
from hours h left join complete s on s.hour = h.hour and (s.settled or not $5)
order by h.hour`

// Series reads the hours from first to last (both full hours) of a view: one entry each, oldest first. An hour without
// the count of one of the view's projects is missing as a whole: its sum would be too low.
func (s Stats) Series(ctx context.Context, v domain.View, first, last time.Time) ([]domain.HourStat, error) {
	return s.series(ctx, v, first, last, false)
}

// Settled reads the known hours of the whole cloud that can be announced: no check within minutes is expected to decide
// more servers.
func (s Stats) Settled(ctx context.Context, first, last time.Time) ([]domain.HourStat, error) {
	hours, err := s.series(ctx, domain.View{Scope: domain.ScopeCloud}, first, last, true)
	return slices.DeleteFunc(hours, func(h domain.HourStat) bool { return h.Source == domain.Missing }), err
}

func (s Stats) series(
	ctx context.Context, v domain.View, first, last time.Time, settled bool,
) ([]domain.HourStat, error) {
	project, domainID, err := filter(v)
	if err != nil {
		return nil, err
	}
	return queryAll[domain.HourStat](ctx, s.DB.pool, seriesSQL, project, domainID, first, last, settled)
}

const (
	forgetSumsSQL = `delete from stats_sums where hour = any($1)`

	// While the lock is held no counts are written: writers delete sums first. So no sum is older than its counts.
	lockSumsSQL = `lock table stats_sums in share row exclusive mode`

	// The newest hours without sums that have counts. Hours after the last one that was recorded may yet expect more
	// projects. The domain '' is the cloud.
	summarizeSQL = `
with todo as (
    select hour
    from generate_series($1::timestamptz, (select max(last_hour) from stats_projects), interval '1 hour') hour
    where not exists (select from stats_sums s where s.domain_id = '' and s.hour = hour.hour)
      and exists (select from stats_hourly c where c.hour = hour.hour)
    order by hour desc limit $2
), counted as materialized (
    select * from stats_hourly where hour = any(array(select hour from todo))
), views as (
    select '' as view, counted.* from counted union all select domain_id, counted.* from counted where domain_id <> ''
), lacking as (
    select '' as view, h.hour from todo h join stats_projects p on ` + isExpected + `
    left join counted c on c.project_id = p.project_id and c.hour = h.hour where c.hour is null
    union
    select p.domain_id, h.hour from todo h join stats_projects p on ` + isExpected + `
    left join counted c on c.project_id = p.project_id and c.hour = h.hour and c.domain_id = p.domain_id
    where c.hour is null
), sums as (
    select view, hour, sum(running)::int as running, sum(total)::int as total, sum(uncertain)::int as uncertain,
           bool_or(source = 'rebuilt') as rebuilt, bool_and(settled) as settled
    from views group by view, hour
), statuses as (
    select view, hour, jsonb_object_agg(key, n) as by_status
    from (select view, hour, key, sum(value::int)::int as n
          from views, jsonb_each_text(by_status) group by view, hour, key) each
    group by view, hour
), written as (
    insert into stats_sums (domain_id, hour, running, total, uncertain, rebuilt, settled, by_status, complete)
    select s.view, s.hour, s.running, s.total, s.uncertain, s.rebuilt, s.settled, coalesce(t.by_status, '{}'),
           l.hour is null
    from sums s left join statuses t using (view, hour) left join lacking l using (view, hour)
)
select count(*)::int from todo`

	summarizeHours = 6 // in one transaction: 30 000 counts of 5000 projects
)

// Summarize adds up the hours from first on that have no sums, the newest first, until the time is up.
func (s Stats) Summarize(ctx context.Context, first, until time.Time) error {
	for n := summarizeHours; n == summarizeHours && time.Now().Before(until); {
		err := s.DB.inTx(ctx, func(tx pgx.Tx) (err error) {
			if _, err = tx.Exec(ctx, lockSumsSQL); err != nil {
				return err
			}
			n, err = queryValue[int](ctx, tx, summarizeSQL, first, summarizeHours)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
