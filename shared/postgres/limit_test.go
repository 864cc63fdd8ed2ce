package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
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
	must(testkit.Connect(t, url).Exec(t.Context(),
		"update rate_limits set used_up = used_up - interval '6 minutes'"))(t)
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
	must(conn.Exec(t.Context(), `insert into rate_limits
		select 'sign-in', n::text, now() + (n - 900) * interval '1 hour' from generate_series(1, 1000) n`))(t)
	noError(t, postgres.Retention{DB: db}.DeleteUnusedLimits(t.Context()))
	wantValue(t, conn, 100, "%d limits are left", "select count(*)::int from rate_limits")
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
	noError(t, <-deleted)
	wantValue(t, conn, 1, "%d limits are left, want the one that was in use", "select count(*)::int from rate_limits")
}

// TestEventLimit: what requests write counts for their project, once for each event and once for each callback that
// gets it. Over the limit nothing is written, but by work that was accepted, and by functions that serve no request.
func TestEventLimit(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	exec(t, l.conn, `insert into callbacks (project_id, id, user_id, url, status, secret)
		select 'p1', gen_random_uuid(), 'u', 'https://receiver.example.com', 'verified', 's'
		from generate_series(1, 9)`)
	limit := postgres.EventLimit{DB: l.DB, PerMinute: 1000}
	store := postgres.Instances{DB: l.DB}
	var id uuid.UUID
	flavor := domain.ResourceFlavor{ProjectID: "p1", Name: "web", ID: uuid.New(), Kind: "k", Spec: []byte("{}")}
	launches, launched := postgres.Orders{DB: l.DB}, newOrder(1)
	claim := place(t, launches, launched, long)
	changes := []struct {
		name  string
		units int
		do    func(context.Context) error
	}{
		{"connect", 10, func(ctx context.Context) error {
			i, _, err := store.Connect(ctx, foreignServer("s1", uuid.Nil))
			id = i.ID
			return err
		}},
		{"connect a connected one", 0, func(ctx context.Context) error {
			_, _, err := store.Connect(ctx, foreignServer("s1", uuid.Nil))
			return err
		}},
		{"disconnect", 10, func(ctx context.Context) error {
			_, err := store.Disconnect(ctx, domain.Filter{ProjectID: "p1"}, id)
			return err
		}},
		{"make a template", 20, func(ctx context.Context) error {
			_, err := postgres.ResourceFlavors{DB: l.DB}.Create(ctx, flavor, 0)
			return err
		}},
		{"change a template", 20, func(ctx context.Context) error {
			flavor.Version++
			_, err := postgres.ResourceFlavors{DB: l.DB}.Change(ctx, flavor)
			return err
		}},
		{"make a server", 10, func(ctx context.Context) error {
			return launches.Decide(ctx, claim, with(launched.Instances[0], "s2", domain.InstanceActive))
		}},
		{"find one more", 10, func(ctx context.Context) error {
			_, err := launches.PublishUnexpected(ctx, launched.Instances[0], domain.Server{ID: "s3", Name: "web"})
			return err
		}},
		{"complete an order", 10, func(ctx context.Context) error {
			return launches.Finalize(ctx, finalStatus(get(t, launches, launched)))
		}},
	}
	request := must(limit.Begin(t.Context(), "p1"))(t)
	const usedUp = "select extract(epoch from used_up)::float8 from rate_limits where name = 'event' and source = 'p1'"
	exec(t, l.conn, "insert into rate_limits values ('event', 'p1', now() + interval '70 seconds')")
	for _, c := range changes {
		before := testkit.Scalar[float64](t, l.conn, usedUp)
		if c.units > 0 {
			err := apperr.As(c.do(request))
			if err == nil || err.Code != apperr.RateLimited || err.Limit == nil || err.Limit.Name != "event" ||
				err.Limit.Quota != 1000 || err.RetryAfter < time.Second || err.RetryAfter > 20*time.Second {
				t.Errorf("%s over the limit: got %v", c.name, err)
			}
			if c.name == "change a template" {
				flavor.Version--
			}
			if now := testkit.Scalar[float64](t, l.conn, usedUp); now != before {
				t.Errorf("%s is refused, and counts %.1f s", c.name, now-before)
			}
		}
		if err := c.do(domain.Accepted(request)); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if took, want := testkit.Scalar[float64](t, l.conn, usedUp)-before, float64(c.units)*.06; took < want-.01 ||
			took > want+.01 {
			t.Errorf("%s counts %.2f s of the minute, want %.2f", c.name, took, want)
		}
	}
	before := testkit.Scalar[float64](t, l.conn, usedUp)
	if err := changes[0].do(t.Context()); err != nil || testkit.Scalar[float64](t, l.conn, usedUp) != before {
		t.Errorf("a function that serves no request: got %v, or it counts", err)
	}
	wantValue(t, l.conn, 3, "%d events, want one of each change",
		"select count(*)::int from events where subject = '"+id.String()+"'")
	wantCode(t, "another request is begun", errOf(limit.Begin(t.Context(), "p1")), apperr.RateLimited)
	if _, err := limit.Begin(t.Context(), "p2"); err != nil {
		t.Errorf("another project: %v", err)
	}
}

// TestOpenTransactionHoldsNoLimit: a request that has written its events, and is still busy, keeps no other request of
// its project waiting.
func TestOpenTransactionHoldsNoLimit(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	exec(t, l.conn, "begin")
	exec(t, l.conn, `
		select set_config('cloudfn.event_budget', '{"source": "p1", "per_minute": 1, "accepted": true}', true)`)
	exec(t, l.conn, `insert into events (project_id, subject, seq, type, at, data)
		values ('p1', 'busy', 1, 'cloudfn.instance.state.v1', now(), '{}')`)
	request := must(postgres.EventLimit{DB: l.DB, PerMinute: 1000}.Begin(t.Context(), "p1"))(t)
	if _, _, err := (postgres.Instances{DB: l.DB}).Connect(request, foreignServer("s1", uuid.Nil)); err != nil {
		t.Errorf("another request: %v", err)
	}
	exec(t, l.conn, "rollback")
}

// TestLimitIsBounded: a request that writes more than a minute may keeps its project waiting for a minute, and for as
// long as one event counts.
func TestLimitIsBounded(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	limit := postgres.EventLimit{DB: l.DB, PerMinute: 6}
	request, err := limit.Begin(t.Context(), "p1")
	if err != nil {
		t.Fatal(err)
	}
	must(postgres.Orders{DB: l.DB}.Place(request, newOrder(19), time.Minute))(t)
	if _, err = limit.Begin(t.Context(), "p1"); apperr.CodeOf(err) != apperr.RateLimited ||
		apperr.As(err).RetryAfter > 70*time.Second {
		t.Errorf("got %v, wait %s", err, apperr.As(err).RetryAfter)
	}
}

// TestLargeRequestIsNotRefusedHalfway: a request that has room for its first event writes all of them.
func TestLargeRequestIsNotRefusedHalfway(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	request := must(postgres.EventLimit{DB: l.DB, PerMinute: 1}.Begin(t.Context(), "p1"))(t)
	place := func() error {
		_, err := postgres.Orders{DB: l.DB}.Place(request, newOrder(5), time.Minute)
		return err
	}
	if err := place(); err != nil {
		t.Fatalf("the first order: %v", err)
	}
	wantCode(t, "the second order", place(), apperr.RateLimited)
}
