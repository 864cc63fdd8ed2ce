package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func keyedRequest(project, key, request string) domain.KeyedRequest {
	return domain.KeyedRequest{ProjectID: project, KeyID: sessionID(key), RequestMAC: []byte(request)}
}

// TestKeyedRequests: of many attempts one gets the claim. One whose claim has ended writes nothing.
func TestKeyedRequests(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.KeyedRequests{DB: open(t, database)}, testkit.Connect(t, database)
	var begun atomic.Int32
	var first domain.KeyedRequest
	concurrently(8, func(int) {
		attempt, err := store.Begin(ctx, keyedRequest("p", "k", "r"), time.Minute)
		switch {
		case err == nil:
			begun.Add(1)
			first = attempt
		case apperr.CodeOf(err) != apperr.Conflict || apperr.As(err).RetryAfter <= 0:
			t.Errorf("another attempt: %v", err)
		}
	})
	if begun.Load() != 1 || first.Resumed || first.ID == uuid.Nil {
		t.Fatalf("%d attempts have begun: %+v", begun.Load(), first)
	}
	if _, err := store.Begin(ctx, keyedRequest("p", "k", "other"), time.Minute); apperr.CodeOf(err) !=
		apperr.Unprocessable {
		t.Errorf("another request: %v", err)
	}
	if other, err := store.Begin(ctx, keyedRequest("p2", "k", "other"), time.Minute); err != nil || other.Resumed {
		t.Errorf("another project: %v", err)
	}
	testkit.LeaveRequests(t, conn, testkit.Died)
	second, err := store.Begin(ctx, keyedRequest("p", "k", "r"), time.Minute)
	if err != nil || !second.Resumed || second.ID != first.ID {
		t.Errorf("the attempt after it: %+v, %v", second, err)
	}
	for name, write := range map[string]error{
		"finish":  store.Finish(ctx, first, []byte("late")),
		"abandon": store.Abandon(ctx, first),
		"release": store.Release(ctx, first),
	} {
		if !errors.Is(write, domain.ErrFenced) {
			t.Errorf("%s of one that has lost its claim: %v", name, write)
		}
	}
	noError(t, store.Release(ctx, second))
	third, err := store.Begin(ctx, keyedRequest("p", "k", "r"), time.Minute)
	if err != nil || !third.Resumed || store.Finish(ctx, third, []byte("done")) != nil {
		t.Errorf("after a release: %+v, %v", third, err)
	}
	if last, err := store.Begin(ctx, keyedRequest("p", "k", "r"), time.Minute); err != nil ||
		string(last.Response) != "done" {
		t.Errorf("when it is done: %+v, %v", last, err)
	}
}

// TestKeysExpire: a key that has expired is a new one, and retention deletes it.
func TestKeysExpire(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.KeyedRequests{DB: db}
	for _, key := range []string{"old", "older", "new"} {
		attempt, err := store.Begin(ctx, keyedRequest("p", key, "r"), time.Minute)
		if err != nil || store.Finish(ctx, attempt, []byte("done")) != nil {
			t.Fatal(err)
		}
	}
	must(conn.Exec(ctx, "update idempotency_keys set expires_at = now() where key_id <> $1",
		sessionID("new")))(t)
	again, err := store.Begin(ctx, keyedRequest("p", "old", "another"), time.Minute)
	if err != nil || again.Resumed || again.Response != nil {
		t.Errorf("got %+v, %v", again, err)
	}
	config := postgres.RetentionConfig{Orders: 24 * time.Hour, Instances: 24 * time.Hour, Stats: 744 * time.Hour}
	noError(t, postgres.Retention{DB: db, Config: config}.Run(ctx))
	wantValue(t, conn, 2, "%d keys are left, want the new one and the one that is used again",
		"select count(*)::int from idempotency_keys")
}

// TestKeysAreLimited: a project that has stored too much begins no other request with a key, and repeats those it has.
// What was rejected does not count, a large response counts more than once, and a repeated attempt does not.
func TestKeysAreLimited(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.KeyedRequests{DB: open(t, database)}, testkit.Connect(t, database)
	begin := func(key string) domain.KeyedRequest {
		t.Helper()
		return must(store.Begin(ctx, keyedRequest("p", key, "r"), time.Minute))(t)
	}
	const unit = 24 * time.Hour / 100_000
	exec(t, conn, "insert into rate_limits values ('idempotency-key', 'p', now() + interval '1 hour')")
	used := func() time.Time { return testkit.Scalar[time.Time](t, conn, "select used_up from rate_limits") }
	for _, tc := range []struct {
		key   string
		end   func(context.Context, domain.KeyedRequest) error
		units int
	}{
		{"rejected", store.Abandon, 0},
		{"failed", store.Release, 1},
		{"failed", store.Release, 0},
		{"small", func(ctx context.Context, r domain.KeyedRequest) error { return store.Finish(ctx, r, []byte("x")) }, 1},
		{"large", func(ctx context.Context, r domain.KeyedRequest) error {
			return store.Finish(ctx, r, make([]byte, 10<<10))
		}, 3},
	} {
		before := used()
		noError(t, tc.end(ctx, begin(tc.key)))
		if got := used().Sub(before); got != time.Duration(tc.units)*unit {
			t.Errorf("%s: counts for %s", tc.key, got)
		}
	}
	exec(t, conn, "update rate_limits set used_up = now() + interval '24 hours'")
	for _, project := range []string{"p", "p2"} {
		_, err := store.Begin(ctx, keyedRequest(project, "new", "r"), time.Minute)
		if e := apperr.As(err); (err != nil) != (project == "p") || err != nil && (e.Code != apperr.RateLimited ||
			e.Limit == nil || e.Limit.Name != "idempotency-key" || e.RetryAfter != time.Second) {
			t.Errorf("another request of %s: %v", project, err)
		}
	}
	if got := begin("small"); string(got.Response) != "x" {
		t.Errorf("one that is done: %+v", got)
	}
	if got := begin("failed"); !got.Resumed {
		t.Errorf("one that failed: %+v", got)
	}
	exec(t, conn, "update rate_limits set used_up = now() + interval '23 hours'")
	begin("new")
}
