package postgres_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// foreignServer returns an instance to connect: a server of the project p1 that was made outside of Cloudfn. A nil
// connection is the project itself.
func foreignServer(serverID string, connection uuid.UUID) domain.Instance {
	i := domain.Instance{
		ProjectID: "p1", ConnectionID: connection, Spec: domain.LaunchSpec{
			FlavorName: "small", VCPUs: 2, RAMMB: 2048,
			ImageID: "i1",
		},
	}
	i.Observe(domain.Server{
		ID: serverID, Name: "old ✓", Status: "ACTIVE", KeyName: "laptop",
		Addresses: []domain.Address{{Network: "n", IP: "10.0.0.7", Version: 4, Type: "fixed"}},
	})
	return i
}

// connectNow connects it, and gives the instance that it then is.
func (l testDB) connectNow(t *testing.T, wanted domain.Instance) (domain.Instance, bool) {
	t.Helper()
	got, made := must2(postgres.Instances{DB: l.DB}.Connect(t.Context(), wanted))(t)
	return got, made
}

// disconnect disconnects an instance and returns whether it was connected.
func (l testDB) disconnect(t *testing.T, id, connection uuid.UUID) bool {
	t.Helper()
	return must(postgres.Instances{DB: l.DB}.Disconnect(t.Context(),
		domain.Filter{ProjectID: "p1", ConnectionID: connection}, id))(t)
}

// eventsOf lists the events of an instance: sequence, states, whether it was disconnected, and whether it was
// connected through a connection.
func (l testDB) eventsOf(t *testing.T, id uuid.UUID) string {
	t.Helper()
	return testkit.Scalar[string](t, l.conn, `
select coalesce(string_agg(seq || ' ' || coalesce(data->>'previous_state',
  '-') || ' ' || (data->>'state') || coalesce(' gone:' || (data->>'disconnected'), '')
  || case when connection_id is null then '' else ' through' end, ', ' order by seq), '') from events
    where project_id = 'p1' and subject = $1::text`, id.String())
}

// TestConnectServer: the same server connected by many replicas is one instance, with one event.
func TestConnectServer(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	server := uuid.NewString()
	ids, fresh := make([]uuid.UUID, 8), make([]bool, 8)
	concurrently(len(ids), func(n int) {
		i, made, err := postgres.Instances{DB: l.DB}.Connect(t.Context(), foreignServer(server, uuid.Nil))
		if err != nil {
			t.Error(err)
		}
		ids[n], fresh[n] = i.ID, made
	})
	made := 0
	for n := range ids {
		if ids[n] != ids[0] {
			t.Errorf("it is %s and %s", ids[n], ids[0])
		}
		if fresh[n] {
			made++
		}
	}
	if rows := testkit.Scalar[int](t, l.conn, "select count(*)::int from instances"); made != 1 || rows != 1 {
		t.Errorf("made %d times, and there are %d rows", made, rows)
	}
	if got := l.eventsOf(t, ids[0]); got != "1 - active" {
		t.Errorf("the events are %q", got)
	}
	got, again := l.connectNow(t, foreignServer(server, uuid.Nil))
	if again || got.ServerID != server || got.Origin != domain.OriginConnected || got.State != domain.InstanceActive ||
		got.KeyName != "laptop" ||
		len(got.Addresses) != 1 || got.Spec.VCPUs != 2 || got.Name != "old ✓" {
		t.Errorf("it is %+v", got)
	}
	other := foreignServer(server, uuid.Nil) // the same server id in another project is another matter
	other.ProjectID = "p2"
	if _, made := l.connectNow(t, other); !made {
		t.Error("another project's row was taken for it")
	}
}

// TestDisconnect: a disconnected instance is not listed and publishes no events, but counts until its server is
// deleted. Connecting its server again gives the same instance.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	two := 2
	c := l.storeConnection(t, domain.ConnectionQuota{Instances: &two}, nil)
	store := postgres.Instances{DB: l.DB}
	seen := domain.Filter{ProjectID: "p1", ConnectionID: c.ID}
	i, _ := l.connectNow(t, foreignServer(uuid.NewString(), c.ID))
	if found, err := store.ListManaged(t.Context(), seen, 10, ""); err != nil || len(found) != 1 ||
		found[0].ConnectionID != c.ID {
		t.Errorf("through the connection: %v %v", found, err)
	}
	if l.disconnect(t, i.ID, uuid.New()) {
		t.Error("it was disconnected through another connection")
	}
	if !l.disconnect(t, i.ID, c.ID) || l.disconnect(t, i.ID, c.ID) || l.disconnect(t, i.ID, uuid.Nil) {
		t.Error("it is disconnected once")
	}
	for _, id := range []string{i.ID.String(), i.ServerID} {
		own, err := store.Find(t.Context(), domain.Filter{ProjectID: "p1"}, []string{id})
		managed, err2 := store.Find(t.Context(), seen, []string{id})
		tracked, err3 := store.Tracked(t.Context(), "p1", []string{id})
		if err != nil || err2 != nil || err3 != nil || own[0].ID != uuid.Nil || len(tracked) != 0 ||
			managed[0].ID != uuid.Nil {
			t.Errorf("%s is shown: %v %v %v", id, own, tracked, managed)
		}
		for connection, want := range map[uuid.UUID]bool{uuid.Nil: true, c.ID: true, uuid.New(): false} {
			if was, err := store.WasDisconnected(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: connection},
				id); err != nil || was != want {
				t.Errorf("%s was disconnected: %t %v, want %t", id, was, err, want)
			}
		}
	}
	if gone, err := store.WasDisconnected(t.Context(), domain.Filter{ProjectID: "p2"}, i.ServerID); err != nil || gone {
		t.Errorf("another project's: %t %v", gone, err)
	}
	if found, err := store.ListManaged(t.Context(), seen, 10, ""); err != nil || len(found) != 0 {
		t.Errorf("through the connection: %v %v", found, err)
	}
	// It counts: of two places only one is left.
	l.connectNow(t, foreignServer(uuid.NewString(), c.ID))
	wantCode(t, "a third", errOf2(store.Connect(t.Context(),
		foreignServer(uuid.NewString(), c.ID))), apperr.Quota)
	// Its state is still recorded, but no event is published.
	i.State, i.RawStatus = domain.InstanceStopped, "SHUTOFF"
	if published, err := store.Change(t.Context(), []domain.Instance{i}); err != nil || published != 0 {
		t.Errorf("%d events were published: %v", published, err)
	}
	again, made := l.connectNow(t, foreignServer(i.ServerID, c.ID))
	if !made || again.ID != i.ID || again.State != domain.InstanceStopped || !again.DisconnectedAt.IsZero() {
		t.Errorf("connected again it is %+v", again)
	}
	if got, want := l.eventsOf(t, i.ID),
		"1 - active through, 2 active active gone:true through, 3 stopped stopped through"; got != want {
		t.Errorf("the events are %q, want %q", got, want)
	}
	// A deleted instance does not count any more, and cannot be disconnected.
	l.exec(t, "update instances set state = 'deleted' where id = $1", i.ID)
	if l.disconnect(t, i.ID, c.ID) {
		t.Error("a deleted instance was disconnected")
	}
	if _, made := l.connectNow(t, foreignServer(uuid.NewString(), c.ID)); !made {
		t.Error("the quota has room, and no instance was made")
	}
}

// TestAdopt: from whom a connection may adopt an instance.
func TestAdopt(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	one := 1
	a, b := l.storeConnection(t, domain.ConnectionQuota{Instances: &one}, nil),
		l.storeConnection(t, domain.ConnectionQuota{Instances: &one}, nil)
	store := postgres.Instances{DB: l.DB}
	own, _ := l.connectNow(t, foreignServer(uuid.NewString(), uuid.Nil))
	taken, made := l.connectNow(t, foreignServer(own.ServerID, a.ID)) // from the project itself
	if made || taken.ID != own.ID || taken.ConnectionID != a.ID {
		t.Errorf("taken from its project it is %+v", taken)
	}
	wantCode(t, "from a connection that is active", errOf2(store.Connect(t.Context(),
		foreignServer(own.ServerID, b.ID))), apperr.Conflict)
	if got, made := l.connectNow(t, foreignServer(own.ServerID, uuid.Nil)); made || got.ConnectionID != a.ID {
		t.Errorf("its project connects it: %+v", got)
	}
	l.exec(t, "update connections set status = 'expired' where id = $1", a.ID)
	if got, _ := l.connectNow(t, foreignServer(own.ServerID, b.ID)); got.ID != own.ID || got.ConnectionID != b.ID {
		t.Errorf("from one that has ended: %+v", got)
	}
	wantCode(t, "the adopted instance does not count", errOf2(store.Connect(t.Context(),
		foreignServer(uuid.NewString(), b.ID))), apperr.Quota)
	wantCode(t, "through one that has ended", errOf2(store.Connect(t.Context(),
		foreignServer(uuid.NewString(), a.ID))), apperr.Forbidden)
	// An instance that one connection disconnects and the project connects is out of the connection's reach.
	l.disconnect(t, own.ID, uuid.Nil)
	if got, _ := l.connectNow(t, foreignServer(own.ServerID, uuid.Nil)); got.ID != own.ID ||
		got.ConnectionID != uuid.Nil || !got.DisconnectedAt.IsZero() {
		t.Errorf("connected by its project: %+v", got)
	}
	if found, err := store.Find(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: b.ID},
		[]string{own.ServerID}); err != nil || found[0].ID != uuid.Nil {
		t.Errorf("the connection still has it: %+v %v", found, err)
	}
	if _, made := l.connectNow(t, foreignServer(uuid.NewString(), b.ID)); !made {
		t.Error("it counts for the connection")
	}
	forbidden := l.storeConnection(t, domain.ConnectionQuota{},
		func(c *domain.Connection) { c.Actions = []domain.Permission{domain.MayAllocate} })
	wantCode(t, "without the permission", errOf2(store.Connect(t.Context(), foreignServer(uuid.NewString(),
		forbidden.ID))), apperr.Forbidden)
	wantCode(t, "through none", errOf2(store.Connect(t.Context(), foreignServer(uuid.NewString(),
		uuid.New()))), apperr.NotFound)
	twin := foreignServer(uuid.NewString(), uuid.Nil)
	twin.ID = own.ID
	wantCode(t, "under the id of another instance", errOf2(store.Connect(t.Context(), twin)), apperr.Conflict)
}

// TestConnectRaces: many concurrent connects never pass the quota together, in number, vCPUs or memory.
func TestConnectRaces(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	three, six, memory := 3, 7, 3*2048+1
	for name, quota := range map[string]domain.ConnectionQuota{
		"instances": {Instances: &three}, "vcpus": {VCPUs: &six},
		"ram_mb": {RAMMB: &memory},
	} {
		c := l.storeConnection(t, quota, nil)
		var mu sync.Mutex
		codes := map[apperr.Code]int{}
		var words string
		concurrently(8, func(int) {
			_, _, err := postgres.Instances{DB: l.DB}.Connect(t.Context(), foreignServer(uuid.NewString(), c.ID))
			mu.Lock()
			defer mu.Unlock()
			codes[apperr.CodeOf(err)]++
			if err != nil {
				words = err.Error()
			}
		})
		if codes[""] != 3 || codes[apperr.Quota] != 5 || !strings.Contains(words, name) {
			t.Errorf("%s: %v, %s", name, codes, words)
		}
	}
}

// TestConnectRejectsDeletedServer: the error is about the server, not about the id that the caller gave.
func TestConnectRejectsDeletedServer(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	i, _ := l.connectNow(t, foreignServer(uuid.NewString(), uuid.Nil))
	l.exec(t, "update instances set state = 'deleted' where id = $1", i.ID)
	_, _, err := postgres.Instances{DB: l.DB}.Connect(t.Context(), foreignServer(i.ServerID, uuid.Nil))
	if e := apperr.As(err); e.Code != apperr.Conflict || len(e.Fields) != 0 ||
		!strings.Contains(e.Message, "has been deleted") {
		t.Errorf("got %v %+v", err, e)
	}
}

// TestReconnectRecordsCurrentState: no one polls an instance that its project has disconnected, so connecting it again
// records the server's state of now.
func TestReconnectRecordsCurrentState(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	i, _ := l.connectNow(t, foreignServer(uuid.NewString(), uuid.Nil))
	l.disconnect(t, i.ID, uuid.Nil)
	wanted := foreignServer(i.ServerID, uuid.Nil)
	wanted.Observe(domain.Server{ID: i.ServerID, Name: "new", Status: "SHUTOFF"})
	wanted.SeenAt = time.Now()
	if again, made := l.connectNow(t, wanted); !made || again.ID != i.ID || again.State != domain.InstanceStopped ||
		again.Name != "new" {
		t.Errorf("it is %+v", again)
	}
	if got, want := l.eventsOf(t, i.ID), "1 - active, 2 active active gone:true, 3 stopped stopped"; got != want {
		t.Errorf("the events are %q, want %q", got, want)
	}
}
