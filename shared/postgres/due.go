package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/due"
)

// What the clock reads: each returns when the earliest row is due within $1 (due.Declared). They read the columns of
// time and claim, those that tell which rows may be due, and those that their joins need. What has no time of its own
// is due since 'epoch'; now() would look as if it had become due just now.

// DueLeases is when a lease is due.
func DueLeases() string { return Leases{}.Queue().spec.DueSQL() }

// DueDrains is when a drain is due.
func DueDrains() string { return Drains{}.Queue().spec.DueSQL() }

// DueManaged is when a project with managed resources is due.
func DueManaged() string { return Managed{}.Queue().spec.DueSQL() }

// unregistered is since when a function is due that has never registered its jobs.
const unregistered = "timestamptz '1969-01-01 UTC'"

// DueJobs is when a periodic job of a kind is due. A function without any has never registered its jobs, so it is due
// now.
func DueJobs(kind string) []string {
	queue := due.Queue{Table: "jobs", Where: "q.kind = '" + kind + "'"}
	return []string{
		queue.DueSQL(),
		"select " + unregistered + " where not exists (select from jobs where kind = '" + kind +
			"' and due_at is not null)",
	}
}

// dueIdle is past while a job waits for something to follow, and that exists: the process that made it may have died
// before it woke the function. As a condition of the row Postgres would look for it first, whether the job waits or
// not.
func dueIdle(kind, key, exists string) string {
	return "select case when j.due_at = 'infinity' and " + exists + " then 'epoch'::timestamptz end from jobs j" +
		" where j.kind = '" + kind + "' and j.key = '" + key + "'"
}

// The jobs that wait for something to follow.
const (
	PollJob   = "poll"   // of poll-instances: instances and orders
	PoolJob   = "pool"   // of run-leases: hosts of the pool
	RemoteJob = "remote" // of run-connections: servers in other clouds
)

var hasFollowed = `(exists (select from instances i
        where i.state <> 'deleted' and ` + followed + " and " + served("i") + `)
    or exists (select from orders o where o.status = 'running' and o.connection_id is null and ` + served("o") + "))"

const (
	hasPool = `exists (select from nodes where pool <> '')`

	// The state of the others is unknown, and stays so.
	hasRemote = `exists (
    select from instances i join connections c on c.project_id = i.project_id and c.id = i.connection_id
    where i.remote and i.server_id is not null and i.state <> 'deleted'
      and (c.status = 'active' or i.state <> 'unknown'))`
)

// DueFollowed is past if there are instances or orders to follow, and poll-instances has observed none the last time.
// No setting switches it off, so one that was never deployed is missed.
func DueFollowed() string {
	const job = "(select due_at from jobs where kind = 'poll-instances' and key = '" + PollJob + "')"
	return "select case when coalesce(" + job + ", 'infinity') = 'infinity' and " + hasFollowed +
		" then 'epoch'::timestamptz end"
}

// DuePool is past if there are hosts in the pool, and run-leases has observed none the last time.
func DuePool() string { return dueIdle("run-leases", PoolJob, hasPool) }

// HasFollowed reports whether there are instances or orders to follow.
func (p Polls) HasFollowed(ctx context.Context) (bool, error) {
	return queryValue[bool](ctx, p.DB.pool, "select "+hasFollowed)
}

// HasPool reports whether there are hosts in the pool.
func (s Nodes) HasPool(ctx context.Context) (bool, error) {
	return queryValue[bool](ctx, s.DB.pool, "select "+hasPool)
}

// HasRemote reports whether there are servers in other clouds to follow.
func (d Delegations) HasRemote(ctx context.Context) (bool, error) {
	return queryValue[bool](ctx, d.DB.pool, "select "+hasRemote)
}

// dueOrdered is when what is ordered through connections c can continue, the rows w of a table: one has no claim then,
// and its connection's cloud no pause. One whose connection has ended needs no cloud.
func dueOrdered(table string) string {
	return `
select min(coalesce(greatest(w.claimed_until, case when c.status = 'active' then c.not_before end), 'epoch'))
from ` + table + ` w join connections c on c.project_id = w.project_id and c.id = w.connection_id
where w.status = 'running' and w.connection_id is not null
  and coalesce(w.claimed_until, '-infinity') <= now() + $1::interval
  and (c.status <> 'active' or c.suspended_at is null)`
}

// DueConnections is when there is work through connections, when one ends or is checked, and when a trust has to be
// revoked.
func DueConnections() []string {
	return []string{
		dueOrdered("orders"),
		dueOrdered("actions"),
		"select min(expires_at) from connections where status = 'active' and expires_at <= now() + $1::interval",
		"select " + endsAt + " from connections where " + idleBy("now() + $1::interval") + " limit 1",
		`select min(coalesce(not_before, 'epoch')) from connections
    where status <> 'active' and not revoked and kind = 'trust'
      and coalesce(not_before, '-infinity') <= now() + $1::interval`,
		`select min(greatest(next_check_at, check_until)) from connections
    where status = 'active' and next_check_at <= now() + $1::interval`,
		"select min(t.not_before) from trusts_to_revoke t where t.not_before <= now() + $1::interval",
		`select 'epoch'::timestamptz where exists (select from trusts_to_revoke t
    where t.failures = 0 and t.trust_id is not null and not exists (select from connections c
        where c.project_id = t.project_id and c.id = t.connection_id and c.status = 'active'))`,
		`select min(expires_at) from connection_requests
    where status = 'pending' and expires_at <= now() + $1::interval`,
		dueIdle("run-connections", RemoteJob, hasRemote),
	}
}

// DueDeliveries is when a delivery or a handshake is due, or what waits for a gone callback is to be abandoned.
func DueDeliveries() []string {
	return []string{
		"select now() + next from (" + nextDueSQL + ") due (next)",
		`select 'epoch'::timestamptz where exists (
    select from streams s join callbacks c on c.project_id = s.project_id and c.id = s.callback_id
    where s.head < s.tail and s.next_at <= now() + $1::interval and c.status = 'gone')`,
	}
}

// dueHour is when an hour is to be counted that began a minute ago or longer and is not counted: at the full hour
// collect-stats has a tick of its own.
const dueHour = `
select coalesce(greatest(h.begun, j.claimed_until), h.begun)
from (select hour, hour + interval '1 minute' as begun from (select date_trunc('hour', now(), 'UTC') as hour) hours) h
left join jobs j on j.kind = 'collect-stats'
    and j.key = to_char(h.hour at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
where j.done_at is null`

// DueStats is when an hour is missing, or a count is not finished.
func DueStats() []string {
	return []string{dueHour, due.Queue{Table: "jobs", Where: "q.kind = 'collect-stats'"}.DueSQL()}
}

// Clock reads which functions have something due.
type Clock struct {
	db  *DB
	sql string
}

// NewClock makes the one statement of what functions declare.
func NewClock(db *DB, functions []due.Declared) Clock {
	var rows []string
	for _, f := range functions {
		for _, sql := range f.SQL {
			rows = append(rows, "('"+f.Function+"', ("+sql+"))")
		}
	}
	return Clock{db: db, sql: `
with due (function, at) as materialized (values ` + strings.Join(rows, ",\n") + `)
select function, min(at) - now() as "in", coalesce(max(at) filter (where at <= now()), min(at)) - now() as newest,
       min(at) filter (where at > now()) - now() as later,
       bool_and(at = ` + unregistered + `) as is_unregistered,
       exists (select from wake_failures w where w.function = due.function) as is_failing, false as is_forgotten
from due where at <= now() + $1::interval group by function
union all select function, '0', '0', null, false, true, true from wake_failures f
where not exists (select from due where due.function = f.function and at <= now() + $1::interval)
  and failed_at < now() - interval '` + forgetAfter.String() + `' order by "in", function`}
}

// IsDueLater reports whether one of the queries finds something that is due within a time, and not now.
func IsDueLater(ctx context.Context, db *DB, queries []string, within time.Duration) (bool, error) {
	return queryValue[bool](ctx, db.pool, "select exists (select from (values (("+strings.Join(queries, ")), ((")+
		"))) as due (at) where at > now() and at <= now() + $1::interval)", within)
}

// NextDue returns the functions that have something due within a time, those first that have it earliest.
func (c Clock) NextDue(ctx context.Context, within time.Duration) ([]due.Waiting, error) {
	return queryAll[due.Waiting](ctx, c.db.pool, c.sql, within)
}
