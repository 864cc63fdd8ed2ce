package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// write makes the subject's next event in a transaction that stays open for a moment.
func (m testOutbox) write(t *testing.T, conn *pgx.Conn, subject string) {
	ctx := context.Background()
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into events (project_id, subject, seq, type, at, data)
select $1, $2, coalesce(max(seq), 0) + 1, 'cloudfn.instance.state.v1', clock_timestamp(), '{}' from events
  where project_id = $1 and subject = $2`, tenant, subject)
		time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMarkDeliveredConcurrently: two callbacks, each with an event about the other, are suspended concurrently. Each
// locks the row that the other's event is written to, so Postgres aborts one of the two statements, and that one is
// retried.
func TestMarkDeliveredConcurrently(t *testing.T) {
	t.Parallel()
	m := newTestOutbox(t)
	both := []uuid.UUID{m.callback(t), m.callback(t)}
	for _, id := range both {
		exec(t, m.conn, fmt.Sprintf(`insert into events (project_id, subject, seq, type, at, data) values ('%s', '%s', 1,
  '%s', now(), '{}')`, tenant, id, domain.CallbackEvent))
	}
	due := m.claim(t, domain.Room{Attempts: 2})
	if len(due) != 2 || due[0].Event.Subject != due[1].Callback.ID.String() ||
		due[1].Event.Subject != due[0].Callback.ID.String() {
		t.Fatalf("claimed %+v, want each other's event", due)
	}
	exec(t, m.conn, "update callbacks set seq = 1") // as their events say
	exec(t, m.conn, "begin; select from callbacks for no key update")
	var all sync.WaitGroup
	for _, a := range due {
		all.Go(func() {
			_, status, err := m.MarkFailed(t.Context(), a, domain.Outcome{Answer: 410, Gone: true}, time.Hour)
			if err != nil || status != domain.CallbackGone {
				t.Errorf("got %s %v", status, err)
			}
		})
	}
	const waiting = `select count(*)::int from pg_locks where not granted and pid in (select pid
  from pg_stat_activity where datname = current_database())`
	watch := testkit.Connect(t, m.database)
	testkit.Eventually(t, 10*time.Second, "each has its stream and waits for its callback",
		func() bool { return testkit.Scalar[int](t, watch, waiting) == 2 })
	exec(t, m.conn, "commit")
	all.Wait()
}

// TestRetireWhileDelivering: who delivers has the stream and then wants the delivery; so does who deletes both for
// their age.
func TestRetireWhileDelivering(t *testing.T) {
	t.Parallel()
	m := newTestOutbox(t)
	m.callback(t)
	testkit.AddEvents(t, m.conn, tenant, names(1), 1)
	exec(t, m.conn, "update events set at = now() - interval '8 days'")
	exec(t, m.conn, "begin; select from streams for update")
	retired := make(chan error)
	go func() { retired <- m.events.Retire(context.Background(), 7*24*time.Hour) }()
	const waiting = `select exists (select from pg_stat_activity where datname = current_database()
  and wait_event_type = 'Lock')`
	watch := testkit.Connect(t, m.database)
	testkit.Eventually(t, 10*time.Second, "it waits for the stream",
		func() bool { return testkit.Scalar[bool](t, watch, waiting) })
	exec(t, m.conn, "set lock_timeout = '500ms'; update deliveries set status = 'delivered'; commit")
	noError(t, <-retired)
	wantValue(t, m.conn, 0, "%d deliveries are left", "select count(*)::int from deliveries")
}

// TestRetire: old events go with their deliveries, and a stream goes on after them; an hour's event stays.
func TestRetire(t *testing.T) {
	t.Parallel()
	m := newTestOutbox(t)
	m.callback(t)
	testkit.AddEvents(t, m.conn, tenant, names(2), 3)
	hour := time.Now().UTC().Truncate(time.Hour).Add(-30 * 24 * time.Hour)
	for _, want := range []int{1, 0} {
		if announced, err := m.events.Announce(t.Context(),
			[]domain.HourStat{{Hour: hour, Source: domain.Sampled}}); err != nil || announced != want {
			t.Fatalf("announced %d %v, want %d", announced, err, want)
		}
	}
	exec(t, m.conn, `update events set at = now() - interval '8 days' where seq < 3 and project_id <> ''
  or subject = 'subject-001'`)
	held := m.claim(t, domain.Room{Attempts: 1})[0] // being delivered
	noError(t, m.events.Retire(t.Context(), 7*24*time.Hour))
	wantValue(t, m.conn, 2, "%d events are left, want one and the hour's", "select count(*)::int from events")
	if _, err := m.MarkDelivered(t.Context(), held, 200, false, time.Minute); err != nil {
		t.Errorf("the end of what was under way: %v", err)
	}
	if due := m.claim(t, domain.Room{Attempts: 9}); len(due) != 1 || due[0].Event.Subject != "subject-000" ||
		due[0].Seq != 3 {
		t.Errorf("due are %+v", due)
	}
}

// TestWritersRepeatDeadlocks: a writer of events that Postgres ends to resolve a deadlock tries again.
func TestWritersRepeatDeadlocks(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	exec(t, l.conn, `create sequence writes;
create function collide() returns trigger language plpgsql as
    'begin if nextval(''writes'') = 2 then raise exception using errcode = ''40P01''; end if; return new; end';
create trigger collide before insert on events for each row execute function collide()`)
	instance := uuid.New()
	exec(t, l.conn, fmt.Sprintf(`insert into instances (project_id, id, position, name, server_id, state, origin,
		connection_id) values ('p1', '%s', 0, 'x', 's', 'active', 'launched', '%s')`, instance, c.ID))
	for name, write := range map[string]func() error{
		"connect": func() error {
			_, err := postgres.Connections{DB: l.DB}.Create(t.Context(), newConnection())
			return err
		},
		"an action without an id": func() error {
			_, err := postgres.Actions{DB: l.DB}.Create(t.Context(), domain.DelegatedAction{
				ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: instance, UserID: "u2",
				Request: domain.ActionRequest{Action: domain.Reboot},
			})
			return err
		},
		"hours": func() error {
			n, err := postgres.Events{DB: l.DB}.Announce(t.Context(), []domain.HourStat{{Hour: time.Unix(3600, 0)}})
			if err == nil && n != 1 {
				t.Errorf("%d hours are announced", n)
			}
			return err
		},
	} {
		exec(t, l.conn, "select setval('writes', 1)")
		if err := write(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := testkit.Scalar[int](t, l.conn, "select last_value::int from writes"); n < 3 {
			t.Errorf("%s: written once", name)
		}
	}
}

// TestDeadlocksAreRepeatedLater: those that collide wait before they try again, and no longer than their request.
func TestDeadlocksAreRepeatedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		collide := func() error {
			at = append(at, time.Since(began))
			return &pgconn.PgError{Code: "40P01"}
		}
		err := postgres.Repeat(t.Context(), collide)
		if err == nil || len(at) < 3 || slices.Index(at[1:], 0) >= 0 || !slices.IsSorted(at) ||
			at[len(at)-1] > time.Second {
			t.Errorf("tries at %s, %v", at, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		at = nil
		if err := postgres.Repeat(ended, collide); err == nil || len(at) != 1 {
			t.Errorf("after the request has ended: tries at %s, %v", at, err)
		}
	})
}

// guest is of another project than the connections' in these tests.
var guest = domain.Identity{UserID: "u2", UserName: "jane", ProjectID: "p2", WriteRoles: []string{"member"}}

// actors lists who has caused each event of a subject; - is no one.
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
	must(l.Place(t.Context(), o, 0))(t)
	claim, err := l.Claim(t.Context(), o, long)
	if err != nil || !claim.Acquired {
		t.Fatal(claim, err)
	}
	i := o.Instances[0]
	noError(t, l.Decide(t.Context(), claim, with(i, "s1", domain.InstanceBuilding)))
	instances := postgres.Instances{DB: l.DB}
	must(instances.Change(t.Context(), []domain.Instance{with(i, "s1", domain.InstanceActive)}))(t)
	noError(t, l.Finalize(t.Context(), finalStatus(get(t, l.Orders, o))))
	l.wantActors(t, "the order", o.ID, "running u2/jane@p2 through order", "done -")
	l.wantActors(t, "the instance", i.ID, "requested u2/jane@p2 through order", "building u2/jane@p2 through order",
		"active -")

	// What was idle and is taken again is taken by the user who has placed the second order.
	must(instances.Change(t.Context(), []domain.Instance{with(i, "s1", domain.InstanceStopped)}))(t)
	l.exec(t, `update instances set spec = spec || '{"image_id":"debian"}' where id = $1`, i.ID)
	second := connectedOrder(c, 1)
	second.Spec.Reuse, second.Actor = true, domain.ActorOf(delegator, c.ID)
	second.Actor.UserName = "joe"
	must(l.Place(t.Context(), second, 0))(t)
	l.wantActors(t, "the instance that is used again", i.ID, "requested u2/jane@p2 through order",
		"building u2/jane@p2 through order", "active -",
		"stopped -", "stopped u1/joe@p1 through order")

	own := newOrder(1)
	own.Actor = domain.ActorOf(guest, uuid.Nil)
	mine := place(t, l.Orders, own, long)
	noError(t, l.Decide(t.Context(), mine, with(own.Instances[0], "s2", domain.InstanceBuilding)))
	l.wantActors(t, "an order of one's own", own.ID, "running u2/jane@p2 order")
	l.wantActors(t, "its instance", own.Instances[0].ID, "requested u2/jane@p2 order", "building u2/jane@p2 order")
}

// TestActorsOfActions: events of an action have its caller as actor, also those that come later.
func TestActorsOfActions(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	instances, actions := postgres.Instances{DB: l.DB}, postgres.Actions{DB: l.DB}
	requested := domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(), UserID: "u2",
		Request: domain.ActionRequest{Action: domain.Connect}, Actor: domain.ActorOf(guest, c.ID),
	}
	must(actions.Create(t.Context(), requested))(t)
	claim, taken := l.take(t, c, long, 10)
	if len(taken) != 1 || taken[0].Actor == nil || *taken[0].Actor.ConnectionID != c.ID ||
		taken[0].Actor.UserName != "jane" {
		t.Fatalf("taken is %+v", taken)
	}
	ctx := domain.WithActor(t.Context(), taken[0].Actor.Doing(domain.Connect, requested.ID))
	wanted := foreignServer("s1", c.ID)
	wanted.ID = requested.InstanceID
	must2(instances.Connect(ctx, wanted))(t)
	noError(t, actions.End(t.Context(), taken[0], claim, nil))
	ctx = domain.WithActor(t.Context(), domain.ActorOf(guest, c.ID).Doing(domain.Disconnect, uuid.Nil))
	must(instances.Disconnect(ctx, domain.Filter{ProjectID: "p1", ConnectionID: c.ID},
		requested.InstanceID))(t)
	again := foreignServer("s1", uuid.Nil)
	again.SeenAt = time.Now()
	again.State = domain.InstanceStopped
	must2(instances.Connect(domain.WithActor(t.Context(),
		domain.ActorOf(delegator, uuid.Nil).Doing(domain.Connect, uuid.Nil)), again))(t)
	l.wantActors(t, "the action", requested.ID, "running u2/jane@p2 through connect id",
		"done u2/jane@p2 through connect id")
	if got := l.actors(t, requested.InstanceID); !strings.HasPrefix(got,
		"active u2/jane@p2 through connect id, active u2/jane@p2 through disconnect, ") ||
		!strings.HasSuffix(got, " connect") {
		t.Errorf("the instance: %s", got)
	}
	old := l.request(t, c, uuid.New())
	l.wantActors(t, "an action of no one", old.ID, "running -")
}

// TestActorsOfConnections: the events have the user who created or deleted the connection as actor. An automatic end
// has no actor.
func TestActorsOfConnections(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store := postgres.Connections{DB: l.DB}
	who := domain.Identity{UserID: "u1", UserName: "joe", ProjectID: "p1"}
	acting := domain.WithActor(t.Context(), domain.ActorOf(who, uuid.Nil))
	c := must(store.Create(acting, newConnection()))(t)
	must(store.End(t.Context(), "p1", c.ID, domain.ConnectionExpired, "it has expired", false))(t)
	must(store.End(acting, "p1", c.ID, domain.ConnectionDeleted, "it was deleted", false))(t)
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
	requested := domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(), UserID: "u2",
		Request: domain.ActionRequest{Action: domain.Stop}, Actor: domain.ActorOf(guest, c.ID),
	}
	must(postgres.Actions{DB: l.DB}.Create(t.Context(), requested))(t)
	due := must(postgres.Outbox{DB: l.DB}.Claim(t.Context(), domain.Room{Attempts: 10, PerCallback: 8}, time.Minute))(t)
	sees := map[string]bool{}
	for _, a := range due {
		var data struct{ Actor *domain.Actor }
		noError(t, json.Unmarshal(a.Event.Data, &data))
		sees[seen[a.Callback.ID]] = data.Actor != nil && data.Actor.UserName == "jane"
	}
	if len(sees) != 4 || !sees["p1"] || !sees["p2"] || sees["p3"] || !sees[""] {
		t.Errorf("who sees the actor: %v", sees)
	}
}

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
	// The API rejects such an id: TestIDsWithEventsAreTaken.
	l.exec(t, `insert into events (project_id, subject, seq, type, at, connection_id, data)
values ('p1', $1::text, 1, 'cloudfn.instance.state.v1', clock_timestamp(), $2, jsonb_build_object('instance_id', $1::text))`, same.String(), c.ID)
	got := testkit.Scalar[string](t, l.conn, "select coalesce(string_agg(stream, ' '), '') from streams where callback_id = $1", same)
	if want := "p1/" + same.String(); got != want {
		t.Errorf("its streams are %q, want %q", got, want)
	}
	suspend := domain.CallbackSuspended
	must2(postgres.Callbacks{DB: l.DB}.Change(t.Context(), "p2", same,
		domain.CallbackChange{Status: &suspend}))(t)
	got = testkit.Scalar[string](t, l.conn, "select string_agg((callback_id = $1)::text || ' ' || stream, ', ' order by stream) from streams", same)
	if want := "true p1/" + same.String() + ", false p2/" + same.String(); got != want {
		t.Errorf("the streams are %q, want %q", got, want)
	}
}

// TestIDsWithEventsAreTaken: an instance cannot have the id of a callback that gets its events, nor that of a deleted
// resource whose events are still stored, nor that of a lease whose events are not.
func TestIDsWithEventsAreTaken(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	listening, deleted, elsewhere, lease := l.addCallback(t, c), uuid.New(), uuid.New(), uuid.New()
	l.exec(t, `insert into leases (project_id, id, domain_id, user_id, name, starts_at, ends_at, on_end, status)
values ('p1', $1, 'd', 'u', 'x', now(), now() + interval '1 day', 'shelve', 'active')`, lease)
	l.exec(t, `insert into events (project_id, subject, seq, type, at, data)
values ('p1', $1, 2, 'cloudfn.callback.state.v1', now(), '{}'), ('p2', $2, 2, 'cloudfn.callback.state.v1', now(), '{}')`, deleted.String(), elsewhere.String())
	for id, free := range map[uuid.UUID]bool{listening: false, deleted: false, elsewhere: true, lease: false} {
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
