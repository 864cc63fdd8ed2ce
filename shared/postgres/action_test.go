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

// request stores an action of an instance through the connection.
func (l testDB) request(t *testing.T, c domain.Connection, instance uuid.UUID) domain.DelegatedAction {
	t.Helper()
	wanted := domain.DelegatedAction{
		ID: uuid.New(), ProjectID: c.ProjectID, ConnectionID: c.ID, InstanceID: instance, UserID: "u2",
		Request: domain.ActionRequest{Action: domain.Reboot, Hard: true}, Payload: []byte("sealed"),
	}
	return must(postgres.Actions{DB: l.DB}.Create(t.Context(), wanted))(t)
}

// take claims actions of the connection.
func (l testDB) take(
	t *testing.T, c domain.Connection, claimFor time.Duration, limit int,
) (domain.Claim, []domain.DelegatedAction) {
	t.Helper()
	claim, taken := must2(postgres.Actions{DB: l.DB}.Claim(t.Context(), c.ProjectID, c.ID, claimFor, limit))(t)
	return claim, taken
}

// TestActions: the actions of one instance run one after the other, in their order; actions of several instances run at
// the same time.
func TestActions(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	actions := postgres.Actions{DB: l.DB}
	c, other := l.storeConnection(t, domain.ConnectionQuota{}, nil), l.storeConnection(t, domain.ConnectionQuota{}, nil)
	one, two := uuid.New(), uuid.New()
	first, second, third := l.request(t, c, one), l.request(t, c, one), l.request(t, c, two)
	if _, taken := l.take(t, other, time.Minute, 10); len(taken) != 0 {
		t.Errorf("another connection's are taken: %+v", taken)
	}
	claim, taken := l.take(t, c, time.Minute, 10)
	if len(taken) != 2 || taken[0].InstanceID == taken[1].InstanceID {
		t.Fatalf("taken are %+v", taken)
	}
	for _, a := range taken {
		if a.ID == second.ID || a.Request != first.Request || string(a.Payload) != "sealed" || a.UserID != "u2" ||
			a.Status != domain.ActionRunning {
			t.Errorf("taken is %+v", a)
		}
	}
	if _, taken := l.take(t, c, time.Minute, 10); len(taken) != 0 {
		t.Errorf("taken twice: %+v", taken)
	}
	why := &domain.Problem{Code: "conflict", Detail: "why"}
	noError(t, actions.End(t.Context(), first, claim, why))
	wantError(t, "it ends twice", actions.End(t.Context(), first, claim, nil), domain.ErrFenced)
	ended, err := actions.Get(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: c.ID}, first.ID)
	if err != nil || ended.Status != domain.ActionFailed || ended.Problem == nil || *ended.Problem != *why ||
		ended.Payload != nil {
		t.Errorf("ended is %+v %v", ended, err)
	}
	noError(t, actions.Release(t.Context(), third, claim, -time.Second))
	if _, taken := l.take(t, c, time.Minute, 1); len(taken) != 1 || taken[0].ID != second.ID {
		t.Errorf("taken is %+v, want the second", taken)
	}
	for _, through := range []domain.Filter{
		{ProjectID: "p1", ConnectionID: other.ID},
		{ProjectID: "p2", ConnectionID: c.ID},
	} {
		if _, err := actions.Get(t.Context(), through, first.ID); apperr.CodeOf(err) != apperr.NotFound {
			t.Errorf("%+v: %v", through, err)
		}
	}
	var events int
	err = l.conn.QueryRow(t.Context(), `select count(*) from events where subject = $1 and type = $2 and connection_id = $3
and (seq = 1 and data->>'status' = 'running' or seq = 2 and data->>'status' = 'failed'
  and data->>'previous_status' = 'running' and data->'fault'->>'detail' = 'why')`,
		first.ID.String(), domain.ActionEvent, c.ID).Scan(&events)
	if err != nil || events != 2 {
		t.Errorf("%d events %v", events, err)
	}
}

// TestActionsOfDeadReplica: the actions can be claimed again when the dead replica's claim expires. Then its writes
// fail.
func TestActionsOfDeadReplica(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	actions := postgres.Actions{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	a := l.request(t, c, uuid.New())
	dead, _ := l.take(t, c, -time.Second, 1)
	claim, taken := l.take(t, c, time.Minute, 1)
	if len(taken) != 1 {
		t.Fatal("it is not free")
	}
	noError(t, actions.Release(t.Context(), a, dead, -time.Second))
	wantError(t, "the dead one ends it", actions.End(t.Context(), a, dead, nil), domain.ErrFenced)
	noError(t, actions.End(t.Context(), a, claim, nil))
	got, err := actions.Get(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: c.ID}, a.ID)
	if err != nil || got.Status != domain.ActionDone {
		t.Errorf("got %+v %v", got, err)
	}
}

// TestClaimActionsConcurrently: many replicas that claim concurrently take each action once.
func TestClaimActionsConcurrently(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	const n = 20
	for range n {
		l.request(t, c, uuid.New())
	}
	var mu sync.Mutex
	seen := map[uuid.UUID]int{}
	concurrently(8, func(int) {
		for range n {
			_, taken := l.take(t, c, time.Minute, 3)
			mu.Lock()
			for _, a := range taken {
				seen[a.ID]++
			}
			mu.Unlock()
		}
	})
	for id, times := range seen {
		if times != 1 {
			t.Errorf("%s was taken %d times", id, times)
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d were taken", len(seen), n)
	}
}

// TestCreateActionRejectsEndedConnection: an ended connection gets no action; an action through an active one records
// that it is used.
func TestCreateActionRejectsEndedConnection(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	l.request(t, c, uuid.New())
	var used bool
	if err := l.conn.QueryRow(t.Context(), "select last_used_at is not null from connections").Scan(&used); err != nil ||
		!used {
		t.Errorf("it is noted as used: %t %v", used, err)
	}
	l.exec(t, "update connections set status = 'expired'")
	_, err := postgres.Actions{DB: l.DB}.Create(t.Context(),
		domain.DelegatedAction{
			ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(),
			Request: domain.ActionRequest{Action: domain.Stop},
		})
	if apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("got %v", err)
	}
	// Nor when as many wait as may.
	l.exec(t, "update connections set status = 'active'")
	l.exec(t, `insert into actions (project_id, id, connection_id, instance_id, user_id, verb) select 'p1',
  gen_random_uuid(), $1, gen_random_uuid(), 'u', 'stop' from generate_series(1, 1000)`, c.ID)
	_, err = postgres.Actions{DB: l.DB}.Create(t.Context(),
		domain.DelegatedAction{
			ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(),
			Request: domain.ActionRequest{Action: domain.Stop},
		})
	if apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("got %v", err)
	}
}

// connecting orders a server to be connected through the connection, as the instance with the id given (zero = any).
func (l testDB) connecting(
	t *testing.T, c domain.Connection, server string, id uuid.UUID,
) (domain.DelegatedAction, error) {
	t.Helper()
	_, action, err := postgres.Actions{DB: l.DB}.Connect(t.Context(), domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: id, ServerID: server, UserID: "u1",
		Request: domain.ActionRequest{Action: domain.Connect},
	})
	return action, err
}

// TestConnectDuringConnect: a project that connects a server with its own token during a connection's action gets the
// instance id that the action was answered with. If the project gave another id, the instance has that one, and the
// action is rejected with an error that names it.
func TestConnectDuringConnect(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	for _, given := range []uuid.UUID{uuid.Nil, uuid.New()} {
		server := uuid.NewString()
		action := must(l.connecting(t, c, server, uuid.Nil))(t)
		own := foreignServer(server, uuid.Nil)
		own.ID = given
		have, made := l.connectNow(t, own)
		want := given
		if given == uuid.Nil {
			want = action.InstanceID
		}
		if !made || have.ID != want {
			t.Errorf("connected meanwhile it is %s, want %s", have.ID, want)
		}
		adopted := foreignServer(server, c.ID)
		adopted.ID = action.InstanceID
		got, _, err := postgres.Instances{DB: l.DB}.Connect(t.Context(), adopted)
		switch {
		case given == uuid.Nil && (err != nil || got.ID != action.InstanceID || got.ConnectionID != c.ID):
			t.Errorf("then it is %+v %v", got, err)
		case given != uuid.Nil && (apperr.CodeOf(err) != apperr.Conflict ||
			apperr.As(err).Fields[0].Allowed[0] != given.String()):
			t.Errorf("then it is %+v, %v", got, err)
		}
	}
}

// TestConnectAfterIDIsTaken: an order may take the instance id that a connection's action was answered with. A project
// that then connects the server without an id gets another id, and no error.
func TestConnectAfterIDIsTaken(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	server := uuid.NewString()
	action := must(l.connecting(t, c, server, uuid.Nil))(t)
	o := newOrder(1)
	o.Instances[0].ID = action.InstanceID
	place(t, postgres.Orders{DB: l.DB}, o, long)
	if have, made := l.connectNow(t, foreignServer(server, uuid.Nil)); !made || have.ID == action.InstanceID {
		t.Errorf("it is %s", have.ID)
	}
}

// TestConnectByManyConcurrently: callers that connect a server at the same time, directly or through a connection, get
// the same instance.
func TestConnectByManyConcurrently(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	for range 5 {
		server := uuid.NewString()
		var mu sync.Mutex
		ids := map[uuid.UUID]bool{}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				action, err := l.connecting(t, c, server, uuid.Nil)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[action.InstanceID] = true
			})
			all.Go(func() {
				have, _, err := postgres.Instances{DB: l.DB}.Connect(t.Context(), foreignServer(server, uuid.Nil))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[have.ID] = true
			})
		}
		all.Wait()
		actions := testkit.Scalar[int](t, l.conn, "select count(*)::int from actions where server_id = $1", server)
		if len(ids) != 1 || actions != 1 {
			t.Errorf("%d instances and %d actions: %v", len(ids), actions, ids)
		}
	}
}

func newKey() domain.ActionKey {
	return domain.ActionKey{ProjectID: "p1", ID: uuid.New(), BodySHA256: []byte("a")}
}

// TestKeyedAction: of many equal concurrent requests one runs the action, and the others get its result. Another
// request with the same id is rejected.
func TestKeyedAction(t *testing.T) {
	t.Parallel()
	store := postgres.KeyedActions{DB: open(t, testkit.Database(t))}
	key := newKey()
	var mine domain.KeyedAction
	var held atomic.Int64
	concurrently(8, func(int) {
		action, err := store.Begin(t.Context(), key, time.Minute)
		switch {
		case err == nil:
			held.Add(1)
			mine = action
		case apperr.CodeOf(err) != apperr.Conflict || apperr.As(err).RetryAfter <= 0:
			t.Error(err)
		}
	})
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
	noError(t, store.Finish(t.Context(), mine, want))
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
	dead := must(store.Begin(t.Context(), key, time.Minute))(t)
	deployment := uuid.New()
	noError(t, store.RecordDeployment(t.Context(), dead, deployment))
	must(conn.Exec(t.Context(), "update keyed_actions set claimed_until = clock_timestamp()"))(t)
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
	noError(t, store.Release(t.Context(), next, 0))
	third, err := store.Begin(t.Context(), key, time.Minute)
	if err != nil || !third.Resumed {
		t.Errorf("after a release: %+v %v", third, err)
	}
	noError(t, store.Abandon(t.Context(), third))
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
