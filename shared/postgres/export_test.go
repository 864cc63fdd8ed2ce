package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Pool gives tests the pool as functions have it.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// Classify gives an error its code.
var Classify = classify

// RequireWrites makes connections only to a server that takes writes, where several hosts are named.
var RequireWrites = requireWrites

// ConditionTable is the table of SQLSTATEs as docs/failover.md has it.
func ConditionTable() string {
	var table strings.Builder
	table.WriteString("| SQLSTATE | what it means | answer | connections that are closed |\n|---|---|---|---|\n")
	for _, c := range conditions {
		answer := map[apperr.Code]string{apperr.Unavailable: "503", apperr.Conflict: "409"}[c.code]
		state := "`" + c.state + "`"
		if len(c.state) == 2 {
			state = "`" + c.state + "...`"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", state, c.means, answer, []string{"none", "this one", "all"}[c.closes])
	}
	table.WriteString("| any other | a defect of cloudfn | 500 | none |\n")
	return table.String()
}

// Repeat repeats a change after deadlocks.
var Repeat = repeat

// DeleteUntil is what Run does once it has the job.
func (r Retention) DeleteUntil(ctx context.Context, until time.Time) (done bool, err error) {
	return r.deleteOld(ctx, until)
}

// ClockSQL is the clock's one statement.
func ClockSQL(functions []due.Declared) string { return NewClock(nil, functions).sql }

// DueStatement is a statement that looks for due rows, every second or at every tick.
type DueStatement struct {
	SQL  string
	Args []any
}

// DueStatements are all of them, by what they look for.
func DueStatements() map[string]DueStatement {
	claim, long, limit, full := domain.NewClaim().ID, time.Minute, 20, []string{"upkeep"}
	intervals := intervalArgs(domain.RemoteIntervals{Usual: time.Minute, Moving: time.Second, Within: time.Minute})
	cloud := append(slices.Clone(intervals), "", "r", claim, long)
	return map[string]DueStatement{
		"jobs":                      {listDueJobsSQL, []any{"run-leases"}},
		"connections that end":      {endingSQL, []any{limit}},
		"connections with work":     {workSQL, []any{limit}},
		"work through connections":  {busySQL, []any{long, long}},
		"clouds to check":           {checkCloudsSQL, []any{long}},
		"a check":                   {claimCheckSQL, []any{"", "r", long, long}},
		"clouds to read":            {remoteCloudsSQL, intervals},
		"a cloud to read":           {claimReadSQL, cloud},
		"trusts to revoke":          {oldTrustsSQL, []any{limit}},
		"undecided servers":         {undecidedSQL, []any{time.Now().AddDate(0, 0, -30)}},
		"projects that move":        {movingSQL, []any{long}},
		"projects to poll":          {claimDueSQL, []any{claim, long, time.Now().Add(-time.Hour), limit}},
		"leases":                    {Leases{}.Queue().spec.ClaimSQL(), []any{claim, long, limit, full}},
		"leases soon":               {Leases{}.Queue().spec.NextSQL(), []any{time.Second, full}},
		"drains":                    {Drains{}.Queue().spec.ClaimSQL(), []any{claim, long, limit, full}},
		"drains soon":               {Drains{}.Queue().spec.NextSQL(), []any{time.Second, full}},
		"managed projects":          {Managed{}.Queue().spec.ClaimSQL(), []any{claim, long, limit, full}},
		"managed projects soon":     {Managed{}.Queue().spec.NextSQL(), []any{time.Second, full}},
		"requests that expire":      {expireRequestsSQL, nil},
		"handshakes":                {claimHandshakesSQL, []any{claim, long, limit}},
		"deliveries and handshakes": {nextDueSQL, []any{5 * time.Minute}},
		"deliveries": {claimSQL, []any{
			claim, long, limit, false, 4, []string{}, []uuid.UUID{}, []int{},
		}},
	}
}
