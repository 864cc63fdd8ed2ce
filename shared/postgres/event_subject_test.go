package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// addCallback stores a callback of p2 that gets what happens through the connection in p1.
func (l testDB) addCallback(t *testing.T, c domain.Connection) uuid.UUID {
	t.Helper()
	id := uuid.New()
	l.exec(t, `
insert into callbacks (project_id, id, user_id, url, status, secret, connection_id, of_project)
values ('p2', $1, 'u2', 'https://a.example', 'verified', '', $2, 'p1')`, id, c.ID)
	return id
}

// TestCallbackWithIDOfInstance: such a callback gets the instance's events, in a stream apart from that of its own
// events. It is not notified about itself.
func TestCallbackWithIDOfInstance(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, func(c *domain.Connection) { c.UsableBy = []string{"u2"} })
	same := l.addCallback(t, c)
	l.exec(t, "insert into callbacks (project_id, id, user_id, url, status, secret) values ('p2', $1, 'u2', 'https://b.example', 'verified', '')", uuid.New())
	// As an older version let it be stored.
	l.exec(t, `insert into events (project_id, subject, seq, type, at, connection_id, data)
values ('p1', $1::text, 1, 'cloudfn.instance.state.v1', clock_timestamp(), $2, jsonb_build_object('instance_id', $1::text))`, same.String(), c.ID)
	got := testkit.Scalar[string](t, l.conn, "select coalesce(string_agg(stream, ' '), '') from streams where callback_id = $1", same)
	if want := "p1/" + same.String(); got != want {
		t.Errorf("its streams are %q, want %q", got, want)
	}
	suspend := domain.CallbackSuspended
	if _, _, err := (postgres.Callbacks{DB: l.DB}).Change(t.Context(), "p2", same,
		domain.CallbackChange{Status: &suspend}); err != nil {
		t.Fatal(err)
	}
	got = testkit.Scalar[string](t, l.conn, "select string_agg((callback_id = $1)::text || ' ' || stream, ', ' order by stream) from streams", same)
	if want := "true p1/" + same.String() + ", false p2/" + same.String(); got != want {
		t.Errorf("the streams are %q, want %q", got, want)
	}
}

// TestIDsWithEventsAreTaken: an instance cannot have the id of a callback that gets its events, nor that of a deleted
// resource whose events are still stored.
func TestIDsWithEventsAreTaken(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	listening, deleted, elsewhere := l.addCallback(t, c), uuid.New(), uuid.New()
	l.exec(t, `insert into events (project_id, subject, seq, type, at, data)
values ('p1', $1, 2, 'cloudfn.callback.state.v1', now(), '{}'), ('p2', $2, 2, 'cloudfn.callback.state.v1', now(), '{}')`, deleted.String(), elsewhere.String())
	for id, free := range map[uuid.UUID]bool{listening: false, deleted: false, elsewhere: true} {
		o := newOrder(1)
		o.Instances[0].ID = id
		_, err := l.Place(t.Context(), o, time.Minute)
		e := apperr.As(err)
		isConflict := e != nil && e.Code == apperr.Conflict && e.Fields[0].Field == "instances[0].id"
		if free && err != nil || !free && !isConflict {
			t.Errorf("an order of an instance with the id: %v, free is %t", err, free)
		}
		o = newOrder(1)
		o.ID = id
		_, err = l.Place(t.Context(), o, time.Minute)
		if !free && apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("an order with the id: %v", err)
		}
		wanted := foreignServer(uuid.NewString(), uuid.Nil)
		wanted.ID = id
		_, _, err = postgres.Instances{DB: l.DB}.Connect(t.Context(), wanted)
		if !free && apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("connected under the id: %v", err)
		}
	}
}
