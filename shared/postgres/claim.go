package postgres

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// One replica at a time works on a row. It claims the row by the columns claim_id and claimed_until; every write of
// that work carries the claim's id and writes nothing once another replica has the row. A claim ends by itself, by the
// database's clock.

// unclaimed says that nobody has claimed the row of this alias. It is for rows that the statement finds by their key or
// another condition. Statements that look for due rows use unclaimedAt with now(): Postgres looks up no volatile
// function in an index, and clock_timestamp() is one.
func unclaimed(alias string) string { return unclaimedAt(alias, "clock_timestamp()") }

// unclaimedAt says that nobody has claimed the row at a moment, unless the claim is renewed.
func unclaimedAt(alias, moment string) string {
	return "coalesce(" + alias + ".claimed_until, '-infinity') <= " + moment
}

// releaseSQL ends the claim in an update's set clause.
const releaseSQL = "claim_id = null, claimed_until = null"

// acquire claims the row of a key: $1 and $2 are the key, $3 the claim's id, $4 its duration.
func acquire(
	ctx context.Context, db querier, sql string, key1, key2 any, claimFor time.Duration,
) (claim domain.Claim, err error) {
	claim = domain.NewClaim()
	n, err := exec(ctx, db, sql, key1, key2, claim.ID, claimFor)
	claim.Acquired = n == 1
	return claim, err
}

// fenced is domain.ErrFenced when a write under a claim has found no row.
func fenced(written int64, err error) error {
	if err == nil && written == 0 {
		return domain.ErrFenced
	}
	return err
}

// inProgress is a Conflict while another replica has the claim for claimedFor. The caller may retry after one to two
// seconds: most claims are released before they expire.
func inProgress(claimedFor time.Duration, format string, args ...any) error {
	busy := apperr.New(apperr.Conflict, format, args...)
	busy.RetryAfter = min(max(claimedFor, time.Second), 2*time.Second)
	return busy
}
