package collectstats

import (
	"context"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestStoppedClockIsConfirmed: overdue work raises an alarm only if it is still overdue some time later. A process that
// ends does not wait for that, and raises none.
func TestStoppedClockIsConfirmed(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ending := make(chan struct{})
	close(ending)
	ended := flow.WithEnding(t.Context(), ending)
	meanwhile := func(sql string) func(context.Context) bool {
		return func(context.Context) bool { run(sql); return true }
	}
	for _, tc := range []struct {
		name   string
		await  func(context.Context) bool
		events int
	}{
		{"after a downtime the clock's first tick has its function woken", meanwhile(
			"update jobs set claimed_until = now() + interval '1 minute'"), 0},
		{"the process ends", func(context.Context) bool { return awaitClock(ended) }, 0},
		{"the clock has stopped", meanwhile("select"), 1},
		{"the clock is still stopped", meanwhile("select"), 1},
	} {
		run(`delete from jobs;
insert into jobs (kind, key, due_at) values ('run-leases', 'retire', now() - interval '1 hour')`)
		s := serviceOn(t, database, &fakeCloud{}, time.Hour)
		s.await = tc.await
		if err := s.checkClock(t.Context()); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if n := testkit.Scalar[int](t, conn, "select count(*)::int from events"); n != tc.events {
			t.Errorf("%s: %d events, want %d", tc.name, n, tc.events)
		}
	}
}
