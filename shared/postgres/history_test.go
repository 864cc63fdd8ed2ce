package postgres_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

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
	own, _, err := instances.Connect(domain.WithActor(t.Context(), by(delegator, uuid.Nil, domain.Connect)),
		foreignServer("s1", uuid.Nil))
	if err != nil {
		t.Fatal(err)
	}
	l.disconnect(t, own.ID, uuid.Nil)
	if _, _, err := instances.Connect(domain.WithActor(t.Context(), by(guest, c.ID, domain.Connect)),
		foreignServer("s1", c.ID)); err != nil {
		t.Fatal(err)
	}
	stopped := with(own, "s1", domain.InstanceStopped)
	if _, err := instances.Change(domain.WithActor(t.Context(), by(delegator, uuid.Nil, domain.Stop)),
		[]domain.Instance{stopped}); err != nil {
		t.Fatal(err)
	}
	if _, err := instances.Change(t.Context(), []domain.Instance{with(own, "s1", domain.InstanceActive)}); err != nil {
		t.Fatal(err)
	}
	read := func(project string, id, connection uuid.UUID, before int64, limit int, reader string) (lines []string) {
		t.Helper()
		found, err := instances.History(t.Context(), project, id, connection, before, limit, reader)
		if err != nil {
			t.Fatal(err)
		}
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
