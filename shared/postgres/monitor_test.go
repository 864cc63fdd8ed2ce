package postgres_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestWakeMonitor: a function that cannot be woken for three minutes makes one event, and one when it can be again. A
// failure makes none that has ended sooner, or follows another one after a pause.
func TestWakeMonitor(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	monitors, conn := postgres.Monitors{DB: open(t, url)}, testkit.Connect(t, url)
	const eventsSQL = `
select coalesce(string_agg(subject || ' ' || (data->>'monitor') || ' ' || (data->>'function') || ' '
    || (data->>'status') || ' ' || (data->>'reason'), '; ' order by seq), '')
from events where type = 'cloudfn.monitor.failed.v1'`
	step := func(what, want string, do func() error) {
		t.Helper()
		noError(t, do())
		if got := testkit.Scalar[string](t, conn, eventsSQL); got != want {
			t.Errorf("%s: the events are %q, want %q", what, got, want)
		}
	}
	fails := func() error {
		return monitors.WakeFailed(t.Context(), "run-leases", time.Second, "connection refused")
	}
	woken := func() error { return monitors.Woken(t.Context(), "run-leases") }
	later := func(column string, by string) {
		exec(t, conn, "update wake_failures set "+column+" = "+column+" - interval '"+by+"'")
	}
	step("at first", "", fails)
	later("failing_since", "2 minutes")
	step("after two minutes", "", fails)
	step("it can be woken", "", woken)
	step("again", "", fails)
	later("failing_since", "10 minutes")
	later("failed_at", "5 minutes")
	step("five minutes after the last failure", "", fails)
	later("failing_since", "3 minutes")
	const failed = "monitor/wake/run-leases wake run-leases failed connection refused"
	step("after three minutes", failed, fails)
	step("the next failure", failed, fails)
	const works = failed + "; monitor/wake/run-leases wake run-leases works "
	step("it can be woken again", works, woken)
	step("twice", works, woken)
	step("one wake that took five minutes to fail", works+"; "+failed, func() error {
		return monitors.WakeFailed(t.Context(), "run-leases", 5*time.Minute, "connection refused")
	})
	wantValue(t, conn, 1, "%d functions are failing", "select count(*)::int from wake_failures")
}

// TestWokenIsRepeated: a process that dies before its event says that a function can be woken leaves the failure, so
// that the clock calls it again.
func TestWokenIsRepeated(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	monitors, conn := postgres.Monitors{DB: open(t, url)}, testkit.Connect(t, url)
	noError(t, monitors.WakeFailed(t.Context(), "run-leases", 5*time.Minute, "connection refused"))
	exec(t, conn, "create function fail() returns trigger language plpgsql as"+
		" $$ begin raise exception 'it dies here'; end $$;"+
		"create trigger fail before update on monitors for each row execute function fail()")
	if err := monitors.Woken(t.Context(), "run-leases"); err == nil {
		t.Error("it did not die")
	}
	exec(t, conn, "drop trigger fail on monitors")
	wantValue(t, conn, 1, "%d failures are left: no one calls it again", "select count(*)::int from wake_failures")
	noError(t, monitors.Woken(t.Context(), "run-leases"))
	works := testkit.Scalar[int](t, conn, "select count(*)::int from events where data->>'status' = 'works'")
	if left := testkit.Scalar[int](t, conn, "select count(*)::int from wake_failures"); works != 1 || left != 0 {
		t.Errorf("%d events say that it works, and %d failures are left", works, left)
	}
}

// TestClockMonitor: a periodic job that no one has claimed for ten minutes says that the clock has stopped, once. One
// that is claimed, or waits for something to follow, does not, nor that of a function that the clock tries to wake.
func TestClockMonitor(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	monitors, conn := postgres.Monitors{DB: open(t, url)}, testkit.Connect(t, url)
	const tried = "; insert into wake_failures (function, failed_at) select "
	for _, tc := range []struct {
		job    string // its due time and claim
		isLate bool
		events int
	}{
		{"now() - interval '9 minutes', null", false, 0},
		{"now() - interval '1 hour', now() + interval '1 minute'", false, 0},
		{"now() - interval '1 hour', now() - interval '2 minutes'", false, 0},
		{"'infinity', null", false, 0},
		{"null, null", false, 0},
		{"now() - interval '1 hour', null" + tried + "'a', now() - interval '2 minutes'", false, 0},
		{"now() - interval '11 minutes', null", true, 1},
		{"now() - interval '1 hour', now() - interval '20 minutes'", true, 1},
		{"now() - interval '1 hour', null" + tried + "'a', now() - interval '4 minutes'", true, 1},
		{"now() - interval '1 hour', null" + tried + "'b', now()", true, 1},
		{"now(), null", false, 2},
		{"now(), null", false, 2},
	} {
		exec(t, conn, "delete from wake_failures; delete from jobs; insert into jobs (kind, key, due_at, claimed_until) "+
			"select 'a', 'b', "+tc.job)
		overdue, err := monitors.CheckClock(t.Context())
		if err != nil || (overdue > 10*time.Minute) != tc.isLate || !tc.isLate && overdue != 0 {
			t.Errorf("%s: overdue by %s, %v", tc.job, overdue, err)
		}
		n := testkit.Scalar[int](t, conn, "select count(*)::int from events where subject = 'monitor/clock'")
		if n != tc.events {
			t.Errorf("%s: %d events, want %d", tc.job, n, tc.events)
		}
	}
}
