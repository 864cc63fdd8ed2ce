package postgres_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
		action, err := l.connecting(t, c, server, uuid.Nil)
		if err != nil {
			t.Fatal(err)
		}
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
	action, err := l.connecting(t, c, server, uuid.Nil)
	if err != nil {
		t.Fatal(err)
	}
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
