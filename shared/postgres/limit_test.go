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
