package postgres_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func newKey() domain.ActionKey {
	return domain.ActionKey{ProjectID: "p1", ID: uuid.New(), BodySHA256: []byte("a")}
}

// TestKeyedAction: of many equal requests at once one runs the action, and the others get its result. Another request
// with the same id is rejected.
func TestKeyedAction(t *testing.T) {
	t.Parallel()
	store := postgres.KeyedActions{DB: open(t, testkit.Database(t))}
	key := newKey()
	var mine domain.KeyedAction
	var held atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			action, err := store.Begin(t.Context(), key, time.Minute)
			switch {
			case err == nil:
				held.Add(1)
				mine = action
			case apperr.CodeOf(err) != apperr.Conflict || apperr.As(err).RetryAfter <= 0:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if held.Load() != 1 || mine.Resumed || mine.Result != nil || mine.Deployment != uuid.Nil {
		t.Fatalf("%d hold it, one as %+v", held.Load(), mine)
	}
	other := key
	other.BodySHA256 = []byte("b")
	if _, err := store.Begin(t.Context(), other, time.Minute); apperr.CodeOf(err) != apperr.Conflict ||
		apperr.As(err).RetryAfter != 0 {
		t.Errorf("another body: %v", err)
	}
	other.ProjectID = "p2"
	if _, err := store.Begin(t.Context(), other, time.Minute); err != nil {
		t.Errorf("another project's: %v", err)
	}
	want := domain.ActionResult{State: domain.InstanceUpdating, Changed: true}
	if err := store.Finish(t.Context(), mine, want); err != nil {
		t.Error(err)
	}
	if got, err := store.Begin(t.Context(), key, time.Minute); err != nil || got.Result == nil || *got.Result != want {
		t.Errorf("sent again: %+v %v", got, err)
	}
	if err := store.Abandon(t.Context(), mine); err != domain.ErrFenced { //nolint:errorlint // it is the value itself
		t.Errorf("abandoned when it is done: %v", err)
	}
}

// TestKeyedActionOfDeadReplica: the action is resumed when the dead replica's claim has expired. Then that replica
// cannot write any more.
func TestKeyedActionOfDeadReplica(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.KeyedActions{DB: db}
	key := newKey()
	dead, err := store.Begin(t.Context(), key, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	deployment := uuid.New()
	if err := store.RecordDeployment(t.Context(), dead, deployment); err != nil {
		t.Error(err)
	}
	if _, err := conn.Exec(t.Context(), "update keyed_actions set claimed_until = clock_timestamp()"); err != nil {
		t.Fatal(err)
	}
	next, err := store.Begin(t.Context(), key, time.Minute)
	if err != nil || !next.Resumed || next.Deployment != deployment || next.Result != nil ||
		!next.CreatedAt.Equal(dead.CreatedAt) {
		t.Errorf("resumed: %+v %v", next, err)
	}
	for what, err := range map[string]error{
		"deploying": store.RecordDeployment(t.Context(), dead, uuid.New()), "finish": store.Finish(t.Context(), dead,
			domain.ActionResult{}),
		"abandon": store.Abandon(t.Context(), dead), "release": store.Release(t.Context(), dead, 0),
	} {
		if err != domain.ErrFenced { //nolint:errorlint // it is the value itself
			t.Errorf("%s by the dead one: %v", what, err)
		}
	}
	if err := store.Release(t.Context(), next, 0); err != nil {
		t.Error(err)
	}
	third, err := store.Begin(t.Context(), key, time.Minute)
	if err != nil || !third.Resumed {
		t.Errorf("after a release: %+v %v", third, err)
	}
	if err := store.Abandon(t.Context(), third); err != nil {
		t.Error(err)
	}
	if fresh, err := store.Begin(t.Context(), key, time.Minute); err != nil || fresh.Resumed {
		t.Errorf("after it was abandoned: %+v %v", fresh, err)
	}
}

// TestVanishingClaims: a row that is deleted each time before it is read makes no busy loop; the caller tries again.
func TestVanishingClaims(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	exec(t, l.conn, `create sequence tries;
create function vanish() returns trigger language plpgsql as 'begin perform nextval(''tries''); return null; end';
create trigger vanish before insert on keyed_actions for each row execute function vanish();
create trigger vanish before insert on idempotency_keys for each row execute function vanish()`)
	for name, begin := range map[string]func(context.Context) error{
		"an action": func(ctx context.Context) error {
			_, err := postgres.KeyedActions{DB: l.DB}.Begin(ctx, newKey(), time.Minute)
			return err
		},
		"a request": func(ctx context.Context) error {
			_, err := postgres.KeyedRequests{DB: l.DB}.Begin(ctx, keyedRequest("p", "k", "r"), time.Minute)
			return err
		},
	} {
		exec(t, l.conn, "select setval('tries', 1)")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := apperr.As(begin(ctx))
		cancel()
		if err.Code != apperr.Conflict || err.RetryAfter <= 0 {
			t.Errorf("%s: got %v", name, err)
		}
		if n := testkit.Scalar[int](t, l.conn, "select last_value::int from tries"); n > 20 {
			t.Errorf("%s: %d tries", name, n)
		}
	}
}
