package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestGrantsOfClock: the clock writes the event of a monitor, and reads no event.
func TestGrantsOfClock(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := as(t, database, "cloudfn_clock"), testkit.Connect(t, database)
	monitors := postgres.Monitors{DB: db}
	for range 2 {
		if err := monitors.WakeFailed(t.Context(), "run-leases", 5*time.Minute, "connection refused"); err != nil {
			t.Fatal(err)
		}
	}
	if err := monitors.Woken(t.Context(), "run-leases"); err != nil {
		t.Fatal(err)
	}
	if n := testkit.Scalar[int](t, conn,
		"select count(*)::int from events where subject = 'monitor/wake/run-leases'"); n != 2 {
		t.Errorf("%d events, want that it failed and that it works", n)
	}
	for _, sql := range []string{"select data from events", "select subject from events", "delete from events"} {
		_, err := db.Pool().Exec(t.Context(), sql)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
			t.Errorf("%s: got %v", sql, err)
		}
	}
}
