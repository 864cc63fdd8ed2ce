package postgres

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// A monitor is something that should work. Its event is written when it fails, and when it works again.

const (
	// $3 is the event's data.
	monitorEventSQL = `
    insert into events (project_id, subject, seq, type, at, data)
    select $1, 'monitor/' || name, seq, '` + domain.MonitorEvent + `', clock_timestamp(), $3::jsonb from`

	monitorFailedSQL = `
with before as (
    select failed_since as old from monitors where name = $2 for no key update
), after as (
    insert into monitors as m (name, reason, failed_since) values ($2, $3::jsonb->>'reason', clock_timestamp())
    on conflict (name) do update
    set reason = excluded.reason, failed_since = coalesce(m.failed_since, excluded.failed_since),
        seq = m.seq + (m.failed_since is null)::int
    returning *
)` + monitorEventSQL + ` after where not exists (select from before where old is not null)
on conflict do nothing`

	monitorWorksSQL = `
with after as (
    update monitors set reason = '', failed_since = null, ended_at = clock_timestamp(), seq = seq + 1
    where name = $2 and failed_since is not null
    returning *
)` + monitorEventSQL + ` after`
)

func (db *DB) monitorFailed(ctx context.Context, project string, m domain.MonitorEventData, reason string) error {
	m.Status, m.Reason = "failed", reason
	return db.writeMonitor(ctx, monitorFailedSQL, project, m)
}

func (db *DB) monitorWorks(ctx context.Context, project string, m domain.MonitorEventData) error {
	m.Status = "works"
	return db.writeMonitor(ctx, monitorWorksSQL, project, m)
}

func (db *DB) writeMonitor(ctx context.Context, sql, project string, m domain.MonitorEventData) error {
	name := m.Monitor
	switch m.Monitor {
	case "zone":
		name += "/" + m.Zone
	case "wake":
		name += "/" + m.Function
	}
	_, err := write(ctx, db, exec, sql, project, name, m)
	return err
}

// Monitors are those of cloudfn itself. Their events go to the operator's sink only.
type Monitors struct{ DB *DB }

const (
	// A failure that follows no other one within forgetAfter begins again.
	wakeFailedSQL = `
insert into wake_failures as w (function, failing_since) values ($1, clock_timestamp() - $2::interval)
on conflict (function) do update
set failing_since = case when w.failed_at < clock_timestamp() - $3::interval then excluded.failing_since
                         else w.failing_since end,
    failed_at = clock_timestamp()
returning clock_timestamp() - failing_since`

	// The jobs of a function that the clock has tried to wake within $2 say nothing about the clock: it works.
	overdueSQL = `
select coalesce(max(now() - greatest(due_at, claimed_until)), interval '0') from jobs j
where due_at < now() - $1::interval and coalesce(claimed_until, '-infinity') < now() - $1::interval
  and not exists (select from wake_failures w where w.function = j.kind and w.failed_at > now() - $2::interval)`
)

const (
	// reportAfter is for how long a function cannot be woken until its monitor fails.
	reportAfter = 3 * time.Minute
	forgetAfter = 2 * time.Minute
	// overdueAfter is how late a job is when the clock has stopped: it wakes each minute, and retries for one.
	overdueAfter = 10 * time.Minute
	// triedWithin is how old the last failure of the clock is at most, while it works: it tries each minute.
	triedWithin = 3 * time.Minute
)

var clockMonitor = domain.MonitorEventData{Monitor: "clock"}

func wakeMonitor(function string) domain.MonitorEventData {
	return domain.MonitorEventData{Monitor: "wake", Function: function}
}

// WakeFailed records that a function could not be woken, since how long. When that lasts for three minutes, an event
// says so once.
func (m Monitors) WakeFailed(ctx context.Context, function string, since time.Duration, reason string) error {
	lasts, err := queryValue[time.Duration](ctx, m.DB.pool, wakeFailedSQL, function, since, forgetAfter)
	if err != nil || lasts < reportAfter {
		return err
	}
	return m.DB.monitorFailed(ctx, "", wakeMonitor(function), reason)
}

// Woken records that a function that could not be woken was woken. An event says so, if one said that it could not. The
// failure is forgotten last: if the process dies before that, the clock finds it and calls Woken again.
func (m Monitors) Woken(ctx context.Context, function string) error {
	if err := m.DB.monitorWorks(ctx, "", wakeMonitor(function)); err != nil {
		return err
	}
	_, err := exec(ctx, m.DB.pool, "delete from wake_failures where function = $1", function)
	return err
}

// Overdue returns by how much a periodic job is overdue, if by ten minutes at least, and 0 if none is. Jobs of
// functions that the clock cannot wake do not count: their own monitor fails.
func (m Monitors) Overdue(ctx context.Context) (time.Duration, error) {
	return queryValue[time.Duration](ctx, m.DB.pool, overdueSQL, overdueAfter, triedWithin)
}

// CheckClock records whether the clock works: it does not when a periodic job is overdue, because no one has woken its
// function. It returns by how much.
func (m Monitors) CheckClock(ctx context.Context) (overdue time.Duration, err error) {
	overdue, err = m.Overdue(ctx)
	switch {
	case err != nil:
		return 0, err
	case overdue == 0:
		return 0, m.DB.monitorWorks(ctx, "", clockMonitor)
	}
	return overdue, m.DB.monitorFailed(ctx, "", clockMonitor,
		"periodic work is overdue: no one wakes the functions")
}
