package postgres

import (
	"context"
	"time"
)

// Sessions are who is signed in at the console. A row belongs to the browser that has its cookie, and to no project:
// its content is sealed, and only the cookie opens it.
type Sessions struct{ DB *DB }

const (
	maxEnded    = 1000       // ended sessions that one sign-in deletes
	sessionLock = 7166736204 // held by the sign-in that deletes; others skip it

	startSessionSQL = `
with ended as (
    delete from sessions where id in (
        select id from sessions where expires_at <= now() and (select pg_try_advisory_xact_lock($5))
        order by expires_at limit $6)
)
insert into sessions (id, sealed, expires_at, user_id) values ($1, $2, least($3, now() + $4::interval), $7)
returning expires_at`

	// Of two who replace a session, the second finds no row to delete, and inserts none.
	replaceSessionSQL = `
with old as (delete from sessions where id = $1 returning user_id)
insert into sessions (id, sealed, expires_at, user_id)
select $2, $3, least($4, now() + $5::interval), user_id from old
returning expires_at`

	// A session's use is written once a minute at most.
	useSessionSQL = `
with used as (
    update sessions set used_at = now()
    where id = $1 and $3 and used_at < now() - interval '1 minute' and used_at > now() - $2::interval
)
select sealed, expires_at from sessions
where id = $1 and expires_at > now() and used_at > now() - $2::interval`
)

// Start stores a session until its token ends, but for longest at most, and says until when. It deletes ended sessions.
func (s Sessions) Start(
	ctx context.Context, userID string, id, sealed []byte, tokenEnds time.Time, longest time.Duration,
) (until time.Time, err error) {
	return queryValue[time.Time](ctx, s.DB.pool, startSessionSQL, id, sealed, tokenEnds, longest, int64(sessionLock),
		maxEnded, userID)
}

// Replace deletes a session and stores another one of its user, as Start does. Of two callers who replace it, one gets
// NotFound.
func (s Sessions) Replace(
	ctx context.Context, old, id, sealed []byte, tokenEnds time.Time, longest time.Duration,
) (until time.Time, err error) {
	until, err = queryValue[time.Time](ctx, s.DB.pool, replaceSessionSQL, old, id, sealed, tokenEnds, longest)
	return until, orNotFound(err, "unknown session")
}

// Get reads a session that has not expired and was used within the time of idle. isUse keeps it alive. NotFound
// whatever is wrong.
func (s Sessions) Get(
	ctx context.Context, id []byte, idle time.Duration, isUse bool,
) (sealed []byte, until time.Time, err error) {
	err = s.DB.pool.QueryRow(ctx, useSessionSQL, id, idle, isUse).Scan(&sealed, &until)
	return sealed, until, orNotFound(err, "unknown session")
}

// EndAll deletes all sessions of a user.
func (s Sessions) EndAll(ctx context.Context, userID string) error {
	_, err := exec(ctx, s.DB.pool, "delete from sessions where user_id = $1", userID)
	return err
}

// End deletes a session and gives its content. Of two callers who end it, one gets NotFound.
func (s Sessions) End(ctx context.Context, id []byte) (sealed []byte, err error) {
	sealed, err = queryValue[[]byte](ctx, s.DB.pool, "delete from sessions where id = $1 returning sealed", id)
	return sealed, orNotFound(err, "unknown session")
}
