package postgres_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestRateLimitIsShared by two replicas, and kept apart by source and by name. An hour's window lets no time count.
func TestRateLimitIsShared(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	limit := apperr.Limit{Name: "launch", Quota: 10, Window: time.Hour}
	replicas := []postgres.RateLimit{{DB: open(t, url), Limit: limit}, {DB: open(t, url), Limit: limit}}
	for n := range 10 {
		if err := replicas[n%2].Take(t.Context(), "p1", "this project"); err != nil {
			t.Fatalf("request %d: %v", n, err)
		}
	}
	for n, replica := range replicas {
		err := apperr.As(replica.Take(t.Context(), "p1", "this project"))
		if err.Code != apperr.RateLimited || err.Limit == nil || *err.Limit != limit ||
			err.RetryAfter < 5*time.Minute || err.RetryAfter > 6*time.Minute {
			t.Errorf("replica %d: got %v, again in %s", n, err, err.RetryAfter)
		}
	}
	other := postgres.RateLimit{DB: replicas[0].DB, Limit: apperr.Limit{Name: "other", Quota: 10, Window: time.Hour}}
	for source, l := range map[string]postgres.RateLimit{"p2": replicas[0], "p1": other} {
		if err := l.Take(t.Context(), source, "this project"); err != nil {
			t.Errorf("%s of %s: %v", l.Limit.Name, source, err)
		}
	}
	// A tenth of the window later there is room for one.
	if _, err := testkit.Connect(t, url).Exec(t.Context(),
		"update rate_limits set used_up = used_up - interval '6 minutes'"); err != nil {
		t.Fatal(err)
	}
	for n, want := range []apperr.Code{"", apperr.RateLimited} {
		if got := apperr.CodeOf(replicas[0].Take(t.Context(), "p1", "this project")); got != want {
			t.Errorf("later, request %d: got %q", n, got)
		}
	}
}

// TestUnusedLimitsAreDeleted, and no others: an address that sends nothing for a minute leaves no row.
func TestUnusedLimitsAreDeleted(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	conn, db := testkit.Connect(t, url), open(t, url)
	if _, err := conn.Exec(t.Context(), `insert into rate_limits
		select 'sign-in', n::text, now() + (n - 900) * interval '1 hour' from generate_series(1, 1000) n`); err != nil {
		t.Fatal(err)
	}
	if err := (postgres.Retention{DB: db}).DeleteUnusedLimits(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from rate_limits"); n != 100 {
		t.Errorf("%d limits are left", n)
	}
}

// TestUnusedLimitsDeadlockWithNoOne: a transaction that takes from one limit, and then from another, as another replica
// that deletes does.
func TestUnusedLimitsDeadlockWithNoOne(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	conn, watch, db := testkit.Connect(t, url), testkit.Connect(t, url), open(t, url)
	exec(t, conn, "insert into rate_limits select 'handshake', n::text, now() from generate_series(1, 3) n")
	exec(t, conn, "begin; update rate_limits set used_up = used_up where source = '2'")
	deleted := make(chan error, 1)
	go func() { deleted <- (postgres.Retention{DB: db}).DeleteUnusedLimits(t.Context()) }()
	testkit.Eventually(t, 5*time.Second, "it has ended, or waits", func() bool {
		return len(deleted) > 0 || testkit.Scalar[bool](t, watch, "select exists (select from pg_stat_activity "+
			"where datname = current_database() and wait_event_type = 'Lock')")
	})
	exec(t, conn, "update rate_limits set used_up = used_up where source = '1'; commit")
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from rate_limits"); n != 1 {
		t.Errorf("%d limits are left, want the one that was in use", n)
	}
}
