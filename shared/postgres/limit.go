package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// RateLimit is a limit that all replicas share.
type RateLimit struct {
	DB    *DB
	Limit apperr.Limit
}

// ChangeConfig is how often a project may change what costs no call to OpenStack. Each change writes an event, and a
// delivery for each of the project's callbacks.
type ChangeConfig struct {
	// Changes of connections and leases a minute, retries and dry runs of leases, searches for free hosts, and new
	// leases of hosts or without a trust of their own, that all replicas together accept from one project.
	PerMinute int `env:"CHANGE_RATE_LIMIT, default=120" min:"1" max:"100000"`
}

// Limit is the limit, which the functions share.
func (c ChangeConfig) Limit(db *DB) RateLimit {
	return RateLimit{DB: db, Limit: apperr.PerMinute("change", c.PerMinute)}
}

// EventLimit is how many events, and deliveries of them, the requests of a project may write. The trigger of events
// counts them, in the transaction that writes them.
type EventLimit struct {
	DB        *DB
	PerMinute int
}

func eventLimit(perMinute int) apperr.Limit { return apperr.PerMinute("event", perMinute) }

// Begin fails if the source has used up its limit. What is written with the context that it returns counts.
func (l EventLimit) Begin(ctx context.Context, source string) (context.Context, error) {
	limit := eventLimit(l.PerMinute)
	wait, err := queryValue[*time.Duration](ctx, l.DB.pool, "select "+waitSQL, limit.Name, source, limit.Each(),
		limit.Window)
	if err == nil && wait != nil && *wait > 0 {
		err = tooManyEvents(l.PerMinute, *wait)
	}
	if err != nil {
		return ctx, err
	}
	return domain.WithEventBudget(ctx, domain.EventBudget{Source: source, PerMinute: l.PerMinute}), nil
}

func tooManyEvents(perMinute int, wait time.Duration) error {
	err := eventLimit(perMinute).Exceeded("this project", wait)
	err.Message = fmt.Sprintf("the requests of this project have written too many events: at most %d within 1m0s "+
		"(EVENT_RATE_LIMIT), each counted once, and once for each callback that gets it; wait as long as Retry-After "+
		"says", perMinute)
	return err
}

// waitSQL is how long it takes until a source is within the limit again; negative or null = it is.
const waitSQL = `(
    select used_up + $3 - $4::interval - clock_timestamp() from rate_limits where name = $1 and source = $2)`

// takeSQL moves the moment at which the whole quota is free again, unless it would be more than the window away. It
// returns when the next request is within the limit; zero = this one is.
const takeSQL = `
with taken as (
    insert into rate_limits as l (name, source, used_up) values ($1, $2, clock_timestamp() + $3::interval)
    on conflict (name, source) do update set used_up = greatest(l.used_up, clock_timestamp()) + $3
    where greatest(l.used_up, clock_timestamp()) + $3 <= clock_timestamp() + $4::interval
    returning true
)
select case when exists (select from taken) then interval '0' else greatest(interval '1 second', ` + waitSQL + `) end`

// Take counts a request of a source. It fails if the source has used up its limit; name is the source for the caller,
// such as "this project".
func (l RateLimit) Take(ctx context.Context, source, name string) error {
	return take(ctx, l.DB.pool, l.Limit, source, name)
}

func take(ctx context.Context, db querier, limit apperr.Limit, source, name string) error {
	return within(ctx, db, takeSQL, limit, source, name)
}

// within fails if the statement returns for how long the source exceeds the limit.
func within(ctx context.Context, db querier, sql string, limit apperr.Limit, source, name string) error {
	wait, err := queryValue[time.Duration](ctx, db, sql, limit.Name, source, limit.Each(), limit.Window)
	if err != nil || wait == 0 {
		return err
	}
	return limit.Exceeded(name, wait)
}

// deleteUnusedSQL waits for no lock, so that it is part of no deadlock.
const deleteUnusedSQL = `
delete from rate_limits where (name, source) in (
    select name, source from rate_limits where used_up < clock_timestamp() for update skip locked)`

// DeleteUnusedLimits deletes the rate limits whose whole quota is free. A client that has many addresses makes a row of
// each. collect-stats runs it with every event.
func (r Retention) DeleteUnusedLimits(ctx context.Context) error {
	_, err := exec(ctx, r.DB.pool, deleteUnusedSQL)
	return err
}
