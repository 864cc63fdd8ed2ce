package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Stats are the hourly counts of servers, one row per project and hour.
type Stats struct{ DB *DB }

const (
	insertHourSQL = `
insert into stats_hourly as h (project_id, hour, domain_id, running, total, by_status, source,
    uncertain, undecided, recheck_at, settled, launched)
values ($1, $2, $3, $4, $5, $6, $7, cardinality($8::text[]), $8,
    case when cardinality($8::text[]) > 0 then clock_timestamp() + $9::interval end, $10, $11)
on conflict (project_id, hour) do update
set running = excluded.running, total = excluded.total, by_status = excluded.by_status, source = excluded.source,
    uncertain = excluded.uncertain, undecided = excluded.undecided, recheck_at = excluded.recheck_at,
    settled = excluded.settled, launched = greatest(h.launched, excluded.launched)
where h.uncertain > excluded.uncertain`

	replaceHourSQL = `
update stats_hourly
set running = $3, total = $4, by_status = $5, source = $6, uncertain = cardinality($7::text[]), undecided = $7,
    recheck_at = case when cardinality($7::text[]) > 0 then clock_timestamp() + $8::interval end, settled = $9
where project_id = $1 and hour = $2 and uncertain = $10`
)

// Insert stores counts. An hour that a project has already is replaced only when fewer servers are uncertain now. Of
// two counts of what was launched the higher one stays: Nova may have purged servers meanwhile.
func (s Stats) Insert(ctx context.Context, counts []domain.HourCount) error {
	batch := &pgx.Batch{}
	var hours []time.Time
	for _, c := range slices.SortedFunc(slices.Values(counts), byKey) {
		hours = append(hours, c.Hour)
		batch.Queue(insertHourSQL, c.ProjectID, c.Hour, c.DomainID, c.Running, c.Total, byStatus(c), c.Source,
			orEmpty(c.Undecided), c.Recheck, c.Settled, c.Launched)
	}
	return s.write(ctx, hours, batch)
}

// ReplaceCounts replaces counts by better ones, unless another replica has done so since. What was launched stays.
func (s Stats) ReplaceCounts(ctx context.Context, counts []domain.Recount) error {
	batch := &pgx.Batch{}
	var hours []time.Time
	byHourKey := func(a, b domain.Recount) int { return byKey(a.HourCount, b.HourCount) }
	for _, c := range slices.SortedFunc(slices.Values(counts), byHourKey) {
		hours = append(hours, c.Hour)
		batch.Queue(replaceHourSQL, c.ProjectID, c.Hour, c.Running, c.Total, byStatus(c.HourCount), c.Source,
			orEmpty(c.Undecided), c.Recheck, c.Settled, c.Before)
	}
	return s.write(ctx, hours, batch)
}

// write writes counts, and forgets the sums of their hours first: Summarize waits for the transaction that has begun
// that.
func (s Stats) write(ctx context.Context, hours []time.Time, counts *pgx.Batch) error {
	return s.DB.change(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, forgetSumsSQL, hours); err != nil {
			return err
		}
		return tx.SendBatch(ctx, counts).Close()
	})
}

// byKey orders counts, so that two replicas that store the same ones do not wait for each other.
func byKey(a, b domain.HourCount) int {
	return cmp.Or(cmp.Compare(a.ProjectID, b.ProjectID), a.Hour.Compare(b.Hour))
}

func byStatus(c domain.HourCount) map[string]int {
	if c.ByStatus == nil {
		return map[string]int{}
	}
	return c.ByStatus
}

const undecidedSQL = `
select project_id, hour, domain_id, running, total, by_status, source, undecided from stats_hourly
where recheck_at <= now() and hour >= $1 order by hour desc`

// Undecided reads the counts since from whose undecided servers are due for another check, the newest hour first.
func (s Stats) Undecided(ctx context.Context, from time.Time) ([]domain.HourCount, error) {
	return queryAll[domain.HourCount](ctx, s.DB.pool, undecidedSQL, from)
}

const dueSQL = `
select exists (select from jobs where kind = $1 and key = $2 and done_at is not null),
       (select min(recheck_at) from stats_hourly where recheck_at is not null and hour >= $3)`

// Due reports whether the job that counts an hour is done, and when the undecided servers of hours since from are next
// due for a check, or the zero time without such servers.
func (s Stats) Due(ctx context.Context, kind, key string, from time.Time) (counted bool, recheck time.Time, err error) {
	err = s.DB.pool.QueryRow(ctx, dueSQL, kind, key, from).Scan(&counted, &recheck)
	return counted, recheck, classify(err)
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
		known[project][hour] = true
		return nil
	})
	return known, classify(err)
}

// The hours up to the newest one that was ever recorded expect the projects that existed then: a project that is new,
// or comes back, is not missing in them. Later hours expect all projects that exist now; some of these hours may have
// had no tick.
const seeProjectsSQL = `
with prev as (
    select max(last_hour) as hour from stats_projects
), seen as (
    select distinct on (project_id) * from unnest($1::text[], $2::text[]) as s (project_id, domain_id)
)
insert into stats_projects as p (project_id, domain_id, first_hour, last_hour)
select s.project_id, s.domain_id, greatest($3, prev.hour + interval '1 hour'), $4
from seen s, prev where prev.hour is null or prev.hour < $4
order by s.project_id
on conflict (project_id) do update
set gaps = case when p.last_hour + interval '1 hour' < excluded.first_hour
           then p.gaps + tstzmultirange(tstzrange(p.last_hour, excluded.first_hour, '()')) else p.gaps end,
    last_hour = excluded.last_hour, domain_id = excluded.domain_id
where p.last_hour < excluded.last_hour`

// RecordProjects records that the projects exist and have to be counted from first to last, as far as these hours were
// not recorded yet.
func (s Stats) RecordProjects(ctx context.Context, projects []domain.Project, first, last time.Time) error {
	ids, domains := make([]string, len(projects)), make([]string, len(projects))
	for i, p := range projects {
		ids[i], domains[i] = p.ID, p.DomainID
	}
	_, err := exec(ctx, s.DB.pool, seeProjectsSQL, ids, domains, first, last)
	return err
}

const (
	lackingSQL = `
select distinct p.project_id
from generate_series($1::timestamptz, $2::timestamptz, interval '1 hour') as h (hour)
join stats_projects p on h.hour between p.first_hour and p.last_hour and not p.gaps @> h.hour
left join stats_hourly c on c.project_id = p.project_id and c.hour = h.hour
where c.hour is null order by 1`

	excuseSQL = `
with forgotten as (delete from stats_sums where hour between $2 and $3)
update stats_projects p
set gaps = p.gaps + coalesce((
    select range_agg(tstzrange(h.hour, h.hour, '[]'))
    from generate_series($2::timestamptz, $3::timestamptz, interval '1 hour') as h (hour)
    where not exists (select from stats_hourly c where c.project_id = p.project_id and c.hour = h.hour)), '{}')
where p.project_id = $1`
)

// ListMissing lists the projects that are expected in an hour from first to last and have no count of it.
func (s Stats) ListMissing(ctx context.Context, first, last time.Time) (projectIDs []string, err error) {
	return queryColumn[string](ctx, s.DB.pool, lackingSQL, first, last)
}

// StopExpecting stops expecting a project in those hours from first to last that it has no count of.
func (s Stats) StopExpecting(ctx context.Context, projectID string, first, last time.Time) error {
	_, err := exec(ctx, s.DB.pool, excuseSQL, projectID, first, last)
	return err
}

// isExpected is the condition that the project p has to be counted in the hour h.
const isExpected = "h.hour between p.first_hour and p.last_hour and not p.gaps @> h.hour"

// sumLaunched is null while one of the projects was counted without it.
const sumLaunched = "case when count(launched) = count(*) then sum(launched)::int end as launched"

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
    select hour, sum(running)::int as running, sum(total)::int as total, ` + sumLaunched + `,
           sum(uncertain)::int as uncertain, bool_or(source = 'rebuilt') as rebuilt, bool_and(settled) as settled
    from counted group by hour
), statuses as (
    select hour, jsonb_object_agg(key, n) as by_status
    from (select hour, key, sum(value::int)::int as n
          from counted, jsonb_each_text(by_status) group by hour, key) each
    group by hour
), complete as (
    select hour, running, total, launched, uncertain, rebuilt, settled, by_status from kept where complete
    union all
    select s.hour, s.running, s.total, s.launched, s.uncertain, s.rebuilt, s.settled, t.by_status
    from sums s left join statuses t using (hour) where s.hour not in (select hour from lacking)
)
select h.hour, s.running, s.total, s.launched, coalesce(s.by_status, '{}') as by_status,
       coalesce(s.uncertain, 0) as uncertain,
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
    select view, hour, sum(running)::int as running, sum(total)::int as total, ` + sumLaunched + `,
           sum(uncertain)::int as uncertain, bool_or(source = 'rebuilt') as rebuilt, bool_and(settled) as settled
    from views group by view, hour
), statuses as (
    select view, hour, jsonb_object_agg(key, n) as by_status
    from (select view, hour, key, sum(value::int)::int as n
          from views, jsonb_each_text(by_status) group by view, hour, key) each
    group by view, hour
), written as (
    insert into stats_sums (domain_id, hour, running, total, launched, uncertain, rebuilt, settled, by_status, complete)
    select s.view, s.hour, s.running, s.total, s.launched, s.uncertain, s.rebuilt, s.settled,
           coalesce(t.by_status, '{}'), l.hour is null
    from sums s left join statuses t using (view, hour) left join lacking l using (view, hour)
)
select count(*)::int from todo`

	summarizeHours = 6 // in one transaction: 30 000 counts of 5000 projects
)

// Summarize adds up the hours from first on that have no sums, the newest first, until the time is up.
func (s Stats) Summarize(ctx context.Context, first, until time.Time) error {
	for n := summarizeHours; n == summarizeHours && time.Now().Before(until); {
		var err error
		n, err = changeValue(ctx, s.DB, func(tx pgx.Tx) (int, error) {
			if _, err := tx.Exec(ctx, lockSumsSQL); err != nil {
				return 0, err
			}
			return queryValue[int](ctx, tx, summarizeSQL, first, summarizeHours)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
