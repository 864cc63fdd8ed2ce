package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Sessions are who is signed in at the console. A row belongs to whoever has its cookie, and to no project: what it is about
// is sealed, and opens with the cookie only.
type Sessions struct{ DB *DB }

const (
	maxEnded    = 1000       // sessions that one sign-in forgets
	sessionLock = 7166736204 // held by the one that forgets; others leave it to that one

	startSessionSQL = `
with forgotten as (
    delete from sessions where id in (
        select id from sessions where expires_at <= now() and (select pg_try_advisory_xact_lock($5)) order by expires_at limit $6)
)
insert into sessions (id, sealed, expires_at) values ($1, $2, least($3, now() + $4::interval))
returning expires_at`
)

// Start stores a session until its token ends, and for so long at most, and says until when. Sessions that are over go.
func (s Sessions) Start(ctx context.Context, id, sealed []byte, tokenEnds time.Time, longest time.Duration) (until time.Time, err error) {
	err = s.DB.pool.QueryRow(ctx, startSessionSQL, id, sealed, tokenEnds, longest, int64(sessionLock), maxEnded).Scan(&until)
	return until.UTC(), classify(err)
}

// Get reads a session that is not over. NotFound whatever is wrong.
func (s Sessions) Get(ctx context.Context, id []byte) (sealed []byte, until time.Time, err error) {
	err = s.DB.pool.QueryRow(ctx, "select sealed, expires_at from sessions where id = $1 and expires_at > now()", id).Scan(&sealed, &until)
	return sealed, until.UTC(), noSession(err)
}

// End takes a session away and gives what it was. Of two who end it, one gets NotFound.
func (s Sessions) End(ctx context.Context, id []byte) (sealed []byte, err error) {
	err = s.DB.pool.QueryRow(ctx, "delete from sessions where id = $1 returning sealed", id).Scan(&sealed)
	return sealed, noSession(err)
}

func noSession(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return apperr.Wrap(apperr.NotFound, err, "unknown session")
	}
	return classify(err)
}
