package postgres_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// guest is of another project than the connections' in these tests.
var guest = domain.Identity{UserID: "u2", UserName: "jane", ProjectID: "p2", WriteRoles: []string{"member"}}

// actors lists who has caused each event of a subject; - is nobody.
func (l testDB) actors(t *testing.T, subject uuid.UUID) string {
	t.Helper()
	return testkit.Scalar[string](t, l.conn, `
select coalesce(string_agg(coalesce(data->>'state', data->>'status') || ' ' || coalesce(
    concat_ws(' ', (data#>>'{actor,user_id}') || '/' || (data#>>'{actor,user_name}') || '@' ||
    	   (data#>>'{actor,project_id}'),
        case when data#>>'{actor,connection_id}' is not null then 'through' end,
          case when data#>>'{actor,order_id}' is not null then 'order' end,
        data#>>'{actor,action}', case when data#>>'{actor,action_id}' is not null then 'id' end),
          '') || case when data->'actor' is null then '-' else '' end,
    ', ' order by seq), '') from events where project_id = 'p1' and subject = $1::text`, subject.String())
}

func (l testDB) wantActors(t *testing.T, what string, subject uuid.UUID, want ...string) {
	t.Helper()
	if got := l.actors(t, subject); got != strings.Join(want, ", ") {
		t.Errorf("%s: %s, want %s", what, got, strings.Join(want, ", "))
	}
}

// TestActorsOfAnOrder: events of the order's own calls have its user as actor; events of changes that Nova shows have
// none.
func TestActorsOfAnOrder(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	o := connectedOrder(c, 1)
	o.Actor = domain.ActorOf(guest, c.ID)
	if _, err := l.Place(t.Context(), o, 0); err != nil {
		t.Fatal(err)
	}
	claim, err := l.Claim(t.Context(), o, long)
	if err != nil || !claim.Acquired {
		t.Fatal(claim, err)
	}
	i := o.Instances[0]
	if err := l.Decide(t.Context(), claim, with(i, "s1", domain.InstanceBuilding)); err != nil {
		t.Fatal(err)
	}
	instances := postgres.Instances{DB: l.DB}
	if _, err := instances.Change(t.Context(), []domain.Instance{with(i, "s1", domain.InstanceActive)}); err != nil {
		t.Fatal(err)
	}
	if err := l.Finalize(t.Context(), finalStatus(get(t, l.Orders, o))); err != nil {
		t.Fatal(err)
	}
	l.wantActors(t, "the order", o.ID, "running u2/jane@p2 through order", "done -")
	l.wantActors(t, "the instance", i.ID, "requested u2/jane@p2 through order", "building u2/jane@p2 through order",
		"active -")

	// What was idle and is taken again is taken by whoever has placed the second order.
	if _, err := instances.Change(t.Context(), []domain.Instance{with(i, "s1", domain.InstanceStopped)}); err != nil {
		t.Fatal(err)
	}
	l.exec(t, `update instances set spec = spec || '{"image_id":"debian"}' where id = $1`, i.ID)
	second := connectedOrder(c, 1)
	second.Spec.Reuse, second.Actor = true, domain.ActorOf(delegator, c.ID)
	second.Actor.UserName = "joe"
	if _, err := l.Place(t.Context(), second, 0); err != nil {
		t.Fatal(err)
	}
	l.wantActors(t, "the instance that is used again", i.ID, "requested u2/jane@p2 through order",
		"building u2/jane@p2 through order", "active -",
		"stopped -", "stopped u1/joe@p1 through order")

	own := newOrder(1)
	own.Actor = domain.ActorOf(guest, uuid.Nil)
	mine := place(t, l.Orders, own, long)
	if err := l.Decide(t.Context(), mine, with(own.Instances[0], "s2", domain.InstanceBuilding)); err != nil {
		t.Fatal(err)
	}
	l.wantActors(t, "an order of one's own", own.ID, "running u2/jane@p2 order")
	l.wantActors(t, "its instance", own.Instances[0].ID, "requested u2/jane@p2 order", "building u2/jane@p2 order")
}

// TestActorsOfActions: events of an action have its caller as actor, also those that come later. Actions that an older
// version stored have no actor.
func TestActorsOfActions(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	instances, actions := postgres.Instances{DB: l.DB}, postgres.Actions{DB: l.DB}
	asked := domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(), UserID: "u2",
		Request: domain.ActionRequest{Action: domain.Connect}, Actor: domain.ActorOf(guest, c.ID),
	}
	if _, err := actions.Create(t.Context(), asked); err != nil {
		t.Fatal(err)
	}
	claim, taken := l.take(t, c, long, 10)
	if len(taken) != 1 || taken[0].Actor == nil || *taken[0].Actor.ConnectionID != c.ID ||
		taken[0].Actor.UserName != "jane" {
		t.Fatalf("taken is %+v", taken)
	}
	ctx := domain.WithActor(t.Context(), taken[0].Actor.Doing(domain.Connect, asked.ID))
	wanted := foreignServer("s1", c.ID)
	wanted.ID = asked.InstanceID
	if _, _, err := instances.Connect(ctx, wanted); err != nil {
		t.Fatal(err)
	}
	if err := actions.End(t.Context(), taken[0], claim, nil); err != nil {
		t.Fatal(err)
	}
	ctx = domain.WithActor(t.Context(), domain.ActorOf(guest, c.ID).Doing(domain.Disconnect, uuid.Nil))
	if _, err := instances.Disconnect(ctx, domain.Filter{ProjectID: "p1", ConnectionID: c.ID},
		asked.InstanceID); err != nil {
		t.Fatal(err)
	}
	again := foreignServer("s1", uuid.Nil)
	again.SeenAt = time.Now()
	again.State = domain.InstanceStopped
	if _, _, err := instances.Connect(domain.WithActor(t.Context(),
		domain.ActorOf(delegator, uuid.Nil).Doing(domain.Connect, uuid.Nil)), again); err != nil {
		t.Fatal(err)
	}
	l.wantActors(t, "the action", asked.ID, "running u2/jane@p2 through connect id",
		"done u2/jane@p2 through connect id")
	if got := l.actors(t, asked.InstanceID); !strings.HasPrefix(got,
		"active u2/jane@p2 through connect id, active u2/jane@p2 through disconnect, ") ||
		!strings.HasSuffix(got, " connect") {
		t.Errorf("the instance: %s", got)
	}
	old := l.ask(t, c, uuid.New())
	l.wantActors(t, "an action of nobody", old.ID, "running -")
}

// TestActorsOfConnections: the events have the user who created or deleted the connection as actor. An end by itself
// has no actor.
func TestActorsOfConnections(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store := postgres.Connections{DB: l.DB}
	who := domain.Identity{UserID: "u1", UserName: "joe", ProjectID: "p1"}
	acting := domain.WithActor(t.Context(), domain.ActorOf(who, uuid.Nil))
	c, err := store.Create(acting, newConnection())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.End(t.Context(), "p1", c.ID, domain.ConnectionExpired, "its time is over", false); err != nil {
		t.Fatal(err)
	}
	if _, err := store.End(acting, "p1", c.ID, domain.ConnectionDeleted, "it was deleted", false); err != nil {
		t.Fatal(err)
	}
	l.wantActors(t, "the connection", c.ID, "active u1/joe@p1", "expired -", "deleted u1/joe@p1")
}

// TestActorsAreHiddenFromOtherProjects: a project that acts through a connection sees itself as an actor, but no other
// project. The owner and the operator see all actors.
func TestActorsAreHiddenFromOtherProjects(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, func(c *domain.Connection) { c.UsableBy = []string{"p2", "p3"} })
	seen := map[uuid.UUID]string{}
	add := func(project, connected string) {
		id := testkit.AddCallback(t, l.conn, project, "https://receiver.example.com/x", domain.CallbackVerified, "whsec_x",
			"")
		if connected != "" {
			l.exec(t, "update callbacks set of_project = 'p1', connection_id = $2 where id = $1", id, c.ID)
		}
		seen[id] = project
	}
	add("p1", "")
	add("p2", "through")
	add("p3", "through")
	add("", "")
	asked := domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(), UserID: "u2",
		Request: domain.ActionRequest{Action: domain.Stop}, Actor: domain.ActorOf(guest, c.ID),
	}
	if _, err := (postgres.Actions{DB: l.DB}).Create(t.Context(), asked); err != nil {
		t.Fatal(err)
	}
	due, err := postgres.Outbox{DB: l.DB}.Claim(t.Context(), domain.Room{Attempts: 10, PerCallback: 8}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	sees := map[string]bool{}
	for _, a := range due {
		var data struct{ Actor *domain.Actor }
		if err := json.Unmarshal(a.Event.Data, &data); err != nil {
			t.Fatal(err)
		}
		sees[seen[a.Callback.ID]] = data.Actor != nil && data.Actor.UserName == "jane"
	}
	if len(sees) != 4 || !sees["p1"] || !sees["p2"] || sees["p3"] || !sees[""] {
		t.Errorf("who sees the actor: %v", sees)
	}
}
