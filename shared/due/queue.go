package due

import (
	"strings"
	"time"
)

// Queue is a table whose rows are due work: it has the columns due_at, claim_id and claimed_until, and an index of
// due_at. The other fields are SQL, of the row q.
type Queue struct {
	Table   string
	Key     []string // the columns of its primary key
	Columns string   // what a claim returns
	// Where is a condition of a row that may be claimed; "" = none.
	Where string
	Order string // what is claimed first
	// Shares is a text[]: what the row takes a share of; "" = nothing.
	Shares string
	// OnClaim and OnRenew set columns besides the claim's, which lasts until claim.until; "" = none.
	OnClaim, OnRenew string
}

// Unclaimed is the condition that no replica has claimed the row of an alias at a moment, unless the claim is renewed.
// Statements that look for due rows use now(): Postgres looks up no volatile function in an index, such as
// clock_timestamp().
func Unclaimed(alias, moment string) string {
	return "coalesce(" + alias + ".claimed_until, '-infinity') <= " + moment
}

// ReleaseSQL ends a claim in an update's set clause.
const ReleaseSQL = "claim_id = null, claimed_until = null"

// claimUntil is the end of a claim that begins now and lasts for $2.
const claimUntil = "claim as materialized (select clock_timestamp() + $2::interval as until)"

// ClaimSQL claims due rows: $1 is the claim's id, $2 how long it lasts, $3 the limit, and $4 the shares that are full.
// It returns the columns, the shares of the row and the time. Replicas that claim concurrently get different rows.
func (q Queue) ClaimSQL() string {
	return "with " + claimUntil + ", due as (select " + q.keys("q") + " from " + q.Table +
		" q where q.due_at <= now() and " + Unclaimed("q", "now()") + q.and("$4") + " order by " + q.Order +
		" limit $3 for no key update skip locked), " +
		"claimed as (update " + q.Table + " q set claim_id = $1, claimed_until = claim.until" + set(q.OnClaim) +
		" from due, claim where " + q.join("due") + " returning q.*, " + q.shares() + " as row_shares)" +
		"\nselect " + q.Columns + ", row_shares, clock_timestamp() as claimed_at from claimed q order by " + q.Order
}

// NextSQL returns how long it is until the next row may be claimed, within $1, without rows of the shares $2 that are
// full; null = none. A claimed row may be claimed when its claim ends.
func (q Queue) NextSQL() string { return q.nextSQL(q.and("$2"), "at - now()") }

// DueSQL returns when the next row may be claimed, within $1; null = none. It reads the columns of time and claim, and
// those of Where.
func (q Queue) DueSQL() string {
	if q.Where == "" {
		return q.nextSQL("", "at")
	}
	return q.nextSQL(" and "+q.Where, "at")
}

func (q Queue) nextSQL(conditions, result string) string {
	return `
with next as materialized (
    select (select q.due_at from ` + q.Table + ` q
            where q.due_at <= now() + $1::interval and ` + Unclaimed("q", "greatest(q.due_at, now())") + conditions + `
            order by q.due_at limit 1) as at
)
select ` + result + ` from (
    select case when at <= now() then at else least(at, (
        select min(q.claimed_until) from ` + q.Table + ` q
        where q.due_at <= now() and q.claimed_until > now()
          and q.claimed_until <= now() + $1::interval` + conditions + `
    )) end as at from next
) due`
}

// RenewSQL prolongs a claim from now on: $1 is its id, $2 how long it lasts, $3 and so on are the key. It writes no row
// when the claim has ended.
func (q Queue) RenewSQL() string {
	return "with " + claimUntil + " update " + q.Table + " q set claimed_until = claim.until" + set(q.OnRenew) +
		" from claim where q.claim_id = $1 and q.claimed_until > clock_timestamp() and " + q.key(3)
}

// ReleaseSQL releases all rows of a claim $1, which are due immediately.
func (q Queue) ReleaseSQL() string {
	return "update " + q.Table + " set due_at = now(), " + ReleaseSQL + " where claim_id = $1"
}

func (q Queue) keys(alias string) string { return alias + "." + strings.Join(q.Key, ", "+alias+".") }

// join is the condition that the row is that of another alias.
func (q Queue) join(alias string) string {
	return "(" + q.keys("q") + ") = (" + q.keys(alias) + ")"
}

// key is the condition that the row has the key in the parameters from the first on.
func (q Queue) key(first int) string {
	all := make([]string, len(q.Key))
	for n, column := range q.Key {
		all[n] = "q." + column + " = $" + string(rune('0'+first+n))
	}
	return strings.Join(all, " and ")
}

func (q Queue) shares() string {
	if q.Shares == "" {
		return "'{}'::text[]"
	}
	return "(" + q.Shares + ")"
}

// and are the queue's conditions with the shares that are full.
func (q Queue) and(full string) (conditions string) {
	if q.Where != "" {
		conditions = " and " + q.Where
	}
	return conditions + " and (" + full + "::text[] = '{}' or not " + q.shares() + " && " + full + "::text[])"
}

func set(columns string) string {
	if columns == "" {
		return ""
	}
	return ", " + columns
}

// Declared is what a function declares that is due.
type Declared struct {
	Function string
	// SQL are queries. Each returns the earliest moment within $1 at which the function has something to do; null, or
	// no row, is nothing to do. A moment that is past is now.
	SQL []string
}

// Waiting is a function that has something due.
type Waiting struct {
	Function string
	In       time.Duration // until the earliest of it is due; it may be negative
	Newest   time.Duration // until the latest of what is due now was due: zero or negative. In, if nothing is due now
	// Later is when another query finds something that is not due now; nil = none does within the requested time
	// for. What a query finds is its earliest row: one that cannot be done hides the later ones of its queue.
	Later *time.Duration
	// IsForgotten reports whether nothing is due any more of a function that could not be woken for some time.
	IsForgotten bool
	// IsUnregistered reports whether it is due only because no process of it has registered its periodic jobs.
	IsUnregistered bool
	// IsFailing reports whether the function could not be woken the last time.
	IsFailing bool
}
