package postgres_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestIdleSessions end, and a use keeps one alive. All of a user end together.
func TestIdleSessions(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	sessions, conn := postgres.Sessions{DB: open(t, database)}, testkit.Connect(t, database)
	ctx := t.Context()
	for id, user := range map[string]string{"a": "u1", "b": "u1", "c": "u2"} {
		if _, err := sessions.Start(ctx, user, sessionID(id), []byte("x"), time.Now().Add(9*time.Hour),
			12*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	age := func(id, by string) {
		t.Helper()
		if _, err := conn.Exec(ctx, "update sessions set used_at = used_at - $2::interval where id = $1", sessionID(id),
			by); err != nil {
			t.Fatal(err)
		}
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
	if err := sessions.EndAll(ctx, "u2"); err != nil {
		t.Fatal(err)
	}
	if !isOpen("a", false) {
		t.Error("another user's session has ended")
	}
	if err := sessions.EndAll(ctx, "u1"); err != nil {
		t.Fatal(err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from sessions"); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}
