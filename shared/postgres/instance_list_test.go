package postgres_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// TestListManagedByConnection lists page by page, the newest first, what is managed through one connection alone.
func TestListManagedByConnection(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	a, b := l.storeConnection(t, domain.ConnectionQuota{}, nil), l.storeConnection(t, domain.ConnectionQuota{}, nil)
	store := postgres.Instances{DB: l.DB}
	var want []string
	for range 5 {
		i, _ := l.connectNow(t, foreignServer(uuid.NewString(), a.ID))
		l.connectNow(t, foreignServer(uuid.NewString(), b.ID))
		want = append([]string{i.ServerID}, want...)
	}
	marker := ""
	var got []string
	for range 3 {
		page := must(store.ListManaged(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: a.ID}, 2, marker))(t)
		for _, i := range page {
			got = append(got, i.ServerID)
			marker = i.ServerID
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %v, want %v", got, want)
	}
	if page, err := store.ListManaged(t.Context(), domain.Filter{ProjectID: "p2", ConnectionID: a.ID}, 10,
		""); err != nil || len(page) != 0 {
		t.Errorf("another project's: %v %v", page, err)
	}
	// By either id, in the order of the ids, and nothing of another connection.
	theirs, _ := l.connectNow(t, foreignServer(uuid.NewString(), b.ID))
	first, _ := store.ListManaged(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: a.ID}, 1, "")
	found, err := store.Find(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: a.ID},
		[]string{theirs.ServerID, want[1], first[0].ID.String(), uuid.NewString()})
	if err != nil || found[0].ID != uuid.Nil || found[1].ServerID != want[1] || found[2].ServerID != want[0] ||
		found[3].ID != uuid.Nil {
		t.Errorf("by ids: %v %v", found, err)
	}
}

func TestTracked(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(2)
	place(t, store, o, long)
	noError(t, change(t, store, []domain.Instance{with(o.Instances[0], "s0", domain.InstanceActive)}))
	for project, want := range map[string]map[string]domain.Tracked{
		"p1": {"s0": {
			ID: o.Instances[0].ID, ServerID: "s0", State: domain.InstanceActive,
			Origin: domain.OriginLaunched,
		}}, "p2": {},
	} {
		got, err := postgres.Instances(store).Tracked(t.Context(), project, []string{"s0", "s1", ""})
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", project, err, diff)
		}
	}
	if got, err := postgres.Instances(store).Tracked(t.Context(), "p1", nil); err != nil || len(got) != 0 {
		t.Errorf("none requested: %v %v", got, err)
	}
}

// TestFind finds instances by their own ids and by their servers', in their project alone, in the order of ids.
func TestFind(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(3)
	place(t, store, o, long)
	server := uuid.NewString()
	noError(t, change(t, store, []domain.Instance{with(o.Instances[0], server, domain.InstanceActive)}))
	made, ordered := o.Instances[0].ID, o.Instances[1].ID
	for name, tc := range map[string]struct {
		project string
		ids     []string
		want    []uuid.UUID
	}{
		"by its server": {"p1", []string{uuid.NewString(), server}, []uuid.UUID{uuid.Nil, made}},
		"by its own":    {"p1", []string{made.String()}, []uuid.UUID{made}},
		"no server yet": {"p1", []string{ordered.String()}, []uuid.UUID{ordered}},
		"another's":     {"p2", []string{server, made.String()}, []uuid.UUID{uuid.Nil, uuid.Nil}},
		"none":          {"p1", nil, []uuid.UUID{}},
	} {
		found, err := postgres.Instances(store).Find(t.Context(), domain.Filter{ProjectID: tc.project}, tc.ids)
		got := make([]uuid.UUID, len(found))
		for n, i := range found {
			if got[n] = i.ID; i.ID == made && (i.ServerID != server || i.State != domain.InstanceActive ||
				i.Origin != domain.OriginLaunched) {
				t.Errorf("%s: got %+v", name, i)
			}
		}
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// TestHistory: the owner sees all events and all actors. A project that acts through a connection sees the events of
// that connection, and only itself as an actor.
func TestHistory(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	instances := postgres.Instances{DB: l.DB}
	by := func(who domain.Identity, connection uuid.UUID, action domain.Action) *domain.Actor {
		return domain.ActorOf(who, connection).Doing(action, uuid.Nil)
	}
	own, _ := must2(instances.Connect(domain.WithActor(t.Context(), by(delegator, uuid.Nil, domain.Connect)),
		foreignServer("s1", uuid.Nil)))(t)
	l.disconnect(t, own.ID, uuid.Nil)
	must2(instances.Connect(domain.WithActor(t.Context(), by(guest, c.ID, domain.Connect)),
		foreignServer("s1", c.ID)))(t)
	stopped := with(own, "s1", domain.InstanceStopped)
	must(instances.Change(domain.WithActor(t.Context(), by(delegator, uuid.Nil, domain.Stop)),
		[]domain.Instance{stopped}))(t)
	must(instances.Change(t.Context(), []domain.Instance{with(own, "s1", domain.InstanceActive)}))(t)
	read := func(project string, id, connection uuid.UUID, before int64, limit int, reader string) (lines []string) {
		t.Helper()
		found := must(instances.History(t.Context(), project, id, connection, before, limit, reader))(t)
		for _, e := range found {
			var data struct {
				State string
				Actor *domain.Actor
			}
			if err := json.Unmarshal(e.Data, &data); err != nil || e.Subject != id.String() || e.At.IsZero() ||
				e.Type != domain.InstanceEvent {
				t.Fatal(e, err)
			}
			line := data.State
			if data.Actor != nil {
				line += " " + data.Actor.UserID + " " + string(data.Actor.Action)
			}
			lines = append(lines, line)
		}
		return lines
	}
	all := read("p1", own.ID, uuid.Nil, 0, 10, "p1")
	if len(all) < 5 || all[0] != "active" || all[1] != "stopped u1 stop" || all[2] != "active u2 connect" ||
		all[len(all)-1] != "active u1 connect" {
		t.Errorf("the owner sees %q", all)
	}
	theirs := read("p1", own.ID, c.ID, 0, 10, "p2")
	if len(theirs) != 3 || theirs[0] != "active" || theirs[1] != "stopped" || theirs[2] != "active u2 connect" {
		t.Errorf("who acts through the connection sees %q", theirs)
	}
	if another := read("p1", own.ID, c.ID, 0, 10, "p3"); len(another) != 3 || another[2] != "active" {
		t.Errorf("another one who may sees %q", another)
	}
	first := read("p1", own.ID, uuid.Nil, 0, 2, "p1")
	if rest := read("p1", own.ID, uuid.Nil, int64(len(all)-1), 10, "p1"); len(first) != 2 || len(rest) != len(all)-2 ||
		rest[0] != all[2] {
		t.Errorf("in pages it is %q and %q", first, rest)
	}
	if other := read("p2", own.ID, uuid.Nil, 0, 10, "p2"); len(other) != 0 {
		t.Errorf("another project sees %q", other)
	}
}
