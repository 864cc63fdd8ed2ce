package postgres_test

import (
	"crypto/sha256"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func sessionID(name string) []byte {
	sum := sha256.Sum256([]byte(name))
	return sum[:]
}

// TestSessions: sessions begin, are read and end. An expired session is not found.
func TestSessions(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	sessions, conn := postgres.Sessions{DB: open(t, database)}, testkit.Connect(t, database)
	now := testkit.Scalar[time.Time](t, conn, "select now()")
	until, err := sessions.Start(ctx, "u1", sessionID("a"), []byte("sealed"), now.Add(time.Hour), 12*time.Hour)
	if err != nil || !until.Equal(now.Add(time.Hour).UTC()) {
		t.Errorf("it ends at %s with its token, not at %s: %v", now.Add(time.Hour), until, err)
	}
	long, err := sessions.Start(ctx, "u1", sessionID("b"), []byte("other"), now.Add(100*time.Hour), 12*time.Hour)
	if left := long.Sub(now); err != nil || left < 12*time.Hour || left > 12*time.Hour+time.Minute {
		t.Errorf("it ends after %s: %v", left, err)
	}
	sealed, ends, err := sessions.Get(ctx, sessionID("a"), time.Hour, true)
	if err != nil || string(sealed) != "sealed" || !ends.Equal(until) {
		t.Errorf("%q %s %v", sealed, ends, err)
	}
	if _, err := sessions.Start(ctx, "u1", sessionID("a"), []byte("stolen"), now.Add(time.Hour),
		time.Hour); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("the same cookie again: %v", err)
	}
	must(conn.Exec(ctx, "update sessions set expires_at = now() where id = $1", sessionID("b")))(t)
	wantCode(t, "one that has ended", errOf2(sessions.Get(ctx, sessionID("b"), time.Hour, true)), apperr.NotFound)
	if sealed, err := sessions.End(ctx, sessionID("a")); err != nil || string(sealed) != "sealed" {
		t.Errorf("%q %v", sealed, err)
	}
	wantCode(t, "ended twice", errOf(sessions.End(ctx, sessionID("a"))), apperr.NotFound)
}

// TestReplaceSession: of those who replace a session concurrently, one does. The new session is the same user's.
func TestReplaceSession(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	sessions, conn := postgres.Sessions{DB: open(t, database)}, testkit.Connect(t, database)
	ends := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	must(sessions.Start(ctx, "u1", sessionID("old"), []byte("old"), ends, 12*time.Hour))(t)
	must(sessions.Start(ctx, "u1", sessionID("other"), []byte("x"), ends, 12*time.Hour))(t)
	replace := func(n int) (time.Time, error) {
		return sessions.Replace(ctx, sessionID("old"), sessionID(strconv.Itoa(n)), []byte("new"), ends, 12*time.Hour)
	}
	var won atomic.Int32
	concurrently(8, func(n int) {
		if until, err := replace(n); err == nil && until.Equal(ends) {
			won.Add(1)
		} else {
			wantCode(t, "a session that was replaced", err, apperr.NotFound)
		}
	})
	if won.Load() != 1 {
		t.Errorf("%d have replaced it", won.Load())
	}
	wantValue(t, conn, 2, "%d sessions of the user, want the new and the other one",
		"select count(*)::int from sessions where user_id = 'u1'")
	wantValue(t, conn, 1, "%d new sessions", "select count(*)::int from sessions where sealed = 'new'")
	wantCode(t, "the old session", errOf2(sessions.Get(ctx, sessionID("old"), time.Hour, true)), apperr.NotFound)
}

// TestEndedSessionsAreDeleted by those that begin, a thousand at a time, however many begin concurrently; none of them
// waits for another, and what is not over stays.
func TestEndedSessionsAreDeleted(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	sessions, conn := postgres.Sessions{DB: open(t, database)}, testkit.Connect(t, database)
	must(conn.Exec(ctx, `insert into sessions (id, sealed, user_id, expires_at)
select sha256(n::text::bytea), '', 'u1', now() - interval '1 s' * n from generate_series(1, 2500) n`))(t)
	tx := must(conn.Begin(ctx))(t)
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(7166736204)"); err != nil { // someone is at it
		t.Fatal(err)
	}
	if _, err := sessions.Start(ctx, "u1", sessionID("meanwhile"), nil, time.Now().Add(time.Hour),
		time.Hour); err == nil {
		t.Error("a session of nothing was stored")
	}
	if _, err := sessions.Start(ctx, "u1", sessionID("meanwhile"), []byte("x"), time.Now().Add(time.Hour),
		time.Hour); err != nil {
		t.Errorf("while someone is at it: %v", err)
	}
	count := func() int {
		return testkit.Scalar[int](t, testkit.Pool(t, database), "select count(*)::int from sessions")
	}
	if n := count(); n != 2501 {
		t.Errorf("there are %d, want all, because someone else was at it", n)
	}
	noError(t, tx.Commit(ctx))
	must(sessions.Start(ctx, "u1", sessionID("first"), []byte("x"), time.Now().Add(time.Hour),
		time.Hour))(t)
	if n := count(); n != 1502 {
		t.Errorf("there are %d, want a thousand less", n)
	}
	concurrently(16, func(n int) {
		if _, err := sessions.Start(ctx, "u1", sessionID(string(rune('a'+n))), []byte("x"),
			time.Now().Add(time.Hour),
			time.Hour); err != nil {
			t.Error(err)
		}
	})
	must(sessions.Start(ctx, "u1", sessionID("last"), []byte("x"), time.Now().Add(time.Hour),
		time.Hour))(t)
	if n := count(); n > 19+500 {
		t.Errorf("there are %d", n)
	}
	wantValue(t, conn, 19, "%d of 19 that are not over are there",
		"select count(*)::int from sessions where expires_at > now()")
}

// TestIdleSessions end, and a use keeps one alive. All of a user end together.
func TestIdleSessions(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	sessions, conn := postgres.Sessions{DB: open(t, database)}, testkit.Connect(t, database)
	ctx := t.Context()
	for id, user := range map[string]string{"a": "u1", "b": "u1", "c": "u2"} {
		must(sessions.Start(ctx, user, sessionID(id), []byte("x"), time.Now().Add(9*time.Hour),
			12*time.Hour))(t)
	}
	age := func(id, by string) {
		t.Helper()
		must(conn.Exec(ctx, "update sessions set used_at = used_at - $2::interval where id = $1", sessionID(id),
			by))(t)
	}
	isOpen := func(id string, isUse bool) bool {
		t.Helper()
		_, _, err := sessions.Get(ctx, sessionID(id), time.Hour, isUse)
		if err != nil && apperr.CodeOf(err) != apperr.NotFound {
			t.Fatal(err)
		}
		return err == nil
	}
	age("a", "50 minutes")
	age("b", "61 minutes")
	age("c", "50 minutes")
	if !isOpen("a", true) || isOpen("b", true) || !isOpen("c", false) {
		t.Error("a session that was used 50 minutes ago is open, and one that was used 61 minutes ago is not")
	}
	age("a", "50 minutes")
	age("c", "50 minutes")
	if !isOpen("a", true) {
		t.Error("its use did not keep the session alive")
	}
	if isOpen("c", true) {
		t.Error("a request that is no use has kept a session alive")
	}
	noError(t, sessions.EndAll(ctx, "u2"))
	if !isOpen("a", false) {
		t.Error("another user's session has ended")
	}
	noError(t, sessions.EndAll(ctx, "u1"))
	wantValue(t, conn, 0, "%d sessions are left", "select count(*)::int from sessions")
}
