package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestChangeCallbackDuringDelivery: owners change, rotate, test and delete callbacks while events are written
// and two copies deliver. No owner's change fails, no event is lost, and what is deleted leaves nothing. A copy that
// delivers may be the one that Postgres chooses to end a deadlock: its claim expires.
func TestChangeCallbackDuringDelivery(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db := must(postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 16}, nil))(t)
	t.Cleanup(db.Close)
	conn := testkit.Connect(t, database)
	callbacks, outbox := postgres.Callbacks{DB: db}, postgres.Outbox{DB: db}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	verify := "update callbacks set status = 'verified' where project_id = 'p' and id = $1"
	made := func() (uuid.UUID, error) {
		c, err := callbacks.Create(ctx, domain.Callback{
			ProjectID: "p", ID: uuid.Must(uuid.NewV7()), UserID: "u", Most: 100,
			URL: "https://a.example", Secret: []byte("x"),
		})
		return c.ID, err
	}
	var mu sync.Mutex
	var deaths []string
	note := func(what string, err error) {
		pg, _ := errors.AsType[*pgconn.PgError](err)
		delivers := what == "deliver" || what == "finish" || what == "verify"
		known := err == nil || delivers && pg != nil && pg.Code == "40P01" || ctx.Err() != nil ||
			errors.Is(err, domain.ErrFenced) || apperr.CodeOf(err) == apperr.NotFound ||
			apperr.CodeOf(err) == apperr.Conflict
		if mu.Lock(); !known {
			deaths = append(deaths, fmt.Sprintf("%s: %v", what, err))
		}
		mu.Unlock()
	}
	var wg sync.WaitGroup
	again := func(what string, do func(n int) error) {
		wg.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				note(what, do(n))
			}
		})
	}
	var ids [4]uuid.UUID
	for i := range ids {
		ids[i] = must(made())(t)
		must(conn.Exec(ctx, verify, ids[i]))(t)
	}
	writer := testkit.Connect(t, database)
	again("write", func(n int) error {
		_, err := writer.Exec(ctx, `insert into events (project_id, subject, seq, type, at, data) select 'p', 's' || s, $1,
  'x', now(), '{}' from generate_series(1, 5) s`, n)
		return err
	})
	suspended, verified := domain.CallbackSuspended, domain.CallbackVerified
	for _, id := range ids {
		again("suspend", func(int) error {
			_, _, err := callbacks.Change(ctx, "p", id, domain.CallbackChange{Status: &suspended})
			return err
		})
		again("resume", func(int) error {
			_, _, err := callbacks.Change(ctx, "p", id, domain.CallbackChange{Status: &verified})
			return err
		})
	}
	verifier := testkit.Connect(t, database)
	again("verify", func(n int) error { _, err := verifier.Exec(ctx, verify, ids[n%len(ids)]); return err })
	again("test", func(n int) error { _, err := callbacks.Test(ctx, "p", ids[n%len(ids)], uuid.New()); return err })
	again("come and go", func(int) error {
		id, err := made()
		if err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
		return callbacks.Delete(ctx, "p", id)
	})
	for range 2 {
		again("deliver", func(n int) error {
			attempts, err := outbox.Claim(ctx, domain.Room{Attempts: 20, PerCallback: 20}, time.Minute)
			for i, a := range attempts {
				if (n+i)%3 == 0 {
					_, _, err = outbox.MarkFailed(ctx, a, domain.Outcome{Answer: 500, Reason: "x"}, time.Hour)
				} else {
					_, err = outbox.MarkDelivered(ctx, a, 200, false, time.Minute)
				}
				note("finish", err)
			}
			return err
		})
	}
	wg.Wait()
	if len(deaths) > 0 {
		t.Errorf("%d failed, such as %s", len(deaths), deaths[0])
	}
	if n := testkit.Scalar[int](t, conn, "select count(*) from deliveries where status = 'delivered'"); n == 0 {
		t.Error("nothing was delivered meanwhile")
	}
	for _, id := range ids {
		if err := callbacks.Delete(t.Context(), "p", id); err != nil {
			t.Error(err)
		}
	}
	wantValue(t, conn, 0, "%d rows are left",
		`select (select count(*) from streams where callback_id = any($1)) + (select count(*) from deliveries
  where callback_id = any($1))`, ids[:])
	if n := testkit.Scalar[int](t, conn, "select count(*) from events where type = 'cloudfn.callback.state.v1'"); n == 0 {
		t.Error("no change was published")
	}
}

// listener is a callback and whose events it gets.
type listener struct {
	project, user string
	connection    uuid.UUID
	of            string // the project of the connection
	order         uuid.UUID
	instance      uuid.UUID
}

// TestEventsFanOut: the owner's project gets all of its own events, no matter who acts in it. A delegate gets the
// events of the connection while he may act through it. No one else gets any.
func TestEventsFanOut(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	mine := l.storeConnection(t, domain.ConnectionQuota{}, func(c *domain.Connection) { c.UsableBy = []string{"u2", "p3"} })
	other := l.storeConnection(t, domain.ConnectionQuota{}, func(c *domain.Connection) { c.UsableBy = []string{"u4"} })
	o := connectedOrder(mine, 1)
	must(l.Place(t.Context(), o, 0))(t)
	ids := map[uuid.UUID]string{}
	for name, who := range map[string]listener{
		"owner":         {project: "p1", user: "u0"},
		"who delegated": {project: "p1", user: "u1", connection: mine.ID, of: "p1"},
		"colleague":     {project: "p1", user: "u0", connection: mine.ID, of: "p1"}, // may not act through it
		"delegate":      {project: "p2", user: "u2", connection: mine.ID, of: "p1"},
		"of a project":  {project: "p3", user: "u3", connection: mine.ID, of: "p1"},
		"of an order":   {project: "p2", user: "u2", connection: mine.ID, of: "p1", order: o.ID},
		"of an instance": {
			project: "p2", user: "u2", connection: mine.ID, of: "p1", instance: o.Instances[0].ID,
		},
		"of another connection":    {project: "p4", user: "u4", connection: other.ID, of: "p1"},
		"stranger":                 {project: "p5", user: "u5", connection: mine.ID, of: "p1"},
		"delegate's own project":   {project: "p2", user: "u2"},
		"of a wrong project":       {project: "p2", user: "u2", connection: mine.ID, of: "p6"},
		"who delegated, elsewhere": {project: "p7", user: "u1", connection: mine.ID, of: "p1"},
	} {
		id := uuid.New()
		ids[id] = name
		null := func(id uuid.UUID) uuid.NullUUID { return uuid.NullUUID{UUID: id, Valid: id != uuid.Nil} }
		l.exec(t, `insert into callbacks (project_id, id, user_id, url, status, secret, connection_id, of_project, order_id,
  instance_id)
			values ($1, $2, $3, 'https://a.example', 'verified', '', $4, nullif($5, ''), $6, $7)`,
			who.project, id, who.user, null(who.connection), who.of, null(who.order), null(who.instance))
	}
	event := func(subject, project, kind string, connection, order, instance uuid.UUID) {
		t.Helper()
		null := func(id uuid.UUID) *uuid.UUID {
			if id == uuid.Nil {
				return nil
			}
			return &id
		}
		l.exec(t, `insert into events (project_id, subject, seq, type, at, connection_id, order_id, data)
			values ($1, $2, 1, $3, clock_timestamp(), $4, $5, jsonb_strip_nulls(jsonb_build_object('instance_id', $6::uuid)))`,
			project, subject, kind, null(connection), null(order), null(instance))
	}
	expect := func(want map[string]string) {
		t.Helper()
		rows, _ := l.conn.Query(t.Context(),
			`with d as (delete from deliveries returning *) select callback_id, string_agg(subject, ' ' order by subject)
  from d group by 1`)
		got := map[string]string{}
		for rows.Next() {
			var id uuid.UUID
			var subjects string
			noError(t, rows.Scan(&id, &subjects))
			got[ids[id]] = subjects
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	event("a", "p1", domain.InstanceEvent, mine.ID, o.ID, o.Instances[0].ID)
	event("b", "p1", domain.InstanceEvent, mine.ID, uuid.Nil, uuid.New())
	event("c", "p1", domain.ActionEvent, mine.ID, uuid.Nil, o.Instances[0].ID)
	event("d", "p1", domain.OrderEvent, mine.ID, o.ID, uuid.Nil)
	event("e", "p1", domain.InstanceEvent, uuid.Nil, uuid.Nil, uuid.New())
	event("f", "p1", domain.InstanceEvent, other.ID, uuid.Nil, uuid.New())
	event("g", "p2", domain.InstanceEvent, uuid.Nil, uuid.Nil, uuid.New())
	event("h", "p6", domain.InstanceEvent, mine.ID, uuid.Nil, uuid.New())
	event("i", "p1", domain.ConnectionEvent, mine.ID, uuid.Nil, uuid.Nil)
	expect(map[string]string{
		"owner": "a b c d e f i", "who delegated": "a b c d i", "delegate": "a b c d i", "of a project": "a b c d i",
		"of an order": "a d", "of an instance": "a c", "of another connection": "f", "delegate's own project": "g",
	})

	l.exec(t, "update connections set usable_by = '{p3}' where id = $1", mine.ID)
	event("k", "p1", domain.InstanceEvent, mine.ID, o.ID, o.Instances[0].ID)
	expect(map[string]string{"owner": "k", "who delegated": "k", "of a project": "k"})

	must(postgres.Connections{DB: l.DB}.End(t.Context(), "p1", mine.ID, domain.ConnectionLost, "why",
		true))(t)
	event("l", "p1", domain.InstanceEvent, mine.ID, uuid.Nil, uuid.New())
	last := mine.ID.String()
	expect(map[string]string{"owner": last + " l", "who delegated": last, "of a project": last})
	must(postgres.Connections{DB: l.DB}.End(t.Context(), "p1", mine.ID, domain.ConnectionDeleted, "",
		true))(t)
	event("m", "p1", domain.InstanceEvent, mine.ID, uuid.Nil, uuid.New())
	expect(map[string]string{"owner": last + " m", "who delegated": last, "of a project": last})

	// No event will ever be sent to the callbacks of a deleted connection.
	l.exec(t, "update callbacks set updated_at = now() - interval '8 days'")
	noError(t, postgres.Events{DB: l.DB}.Retire(t.Context(), 7*24*time.Hour))
	if n := testkit.Scalar[int](t, l.conn, "select count(*)::int from callbacks"); n != 3 {
		t.Errorf("%d callbacks are left, want the owner's, the delegate's own and that of another connection", n)
	}
}

// TestCallbackOfAConnection: a callback of a connection can only be for the connection's own orders and instances.
func TestCallbackOfAConnection(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	mine := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	other := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	known, others, own := connectedOrder(mine, 1), connectedOrder(other, 1), newOrder(1)
	for _, o := range []domain.Order{known, others} {
		must(l.Place(t.Context(), o, 0))(t)
	}
	place(t, l.Orders, own, long)
	for name, tc := range map[string]struct {
		order, instance, connection uuid.UUID
		field                       string
	}{
		"its order":                     {order: known.ID, connection: mine.ID},
		"its instance":                  {instance: known.Instances[0].ID, connection: mine.ID},
		"another's order":               {order: others.ID, connection: mine.ID, field: "order_id"},
		"another's instance":            {instance: others.Instances[0].ID, connection: mine.ID, field: "instance_id"},
		"the owner's order":             {order: own.ID, connection: mine.ID, field: "order_id"},
		"the owner's instance":          {instance: own.Instances[0].ID, connection: mine.ID, field: "instance_id"},
		"order without connection":      {order: known.ID, field: "order_id"},
		"instance without connection":   {instance: known.Instances[0].ID, field: "instance_id"},
		"all events of the connection":  {connection: mine.ID},
		"all events of its own project": {},
	} {
		c := domain.Callback{
			ProjectID: "p2", ID: uuid.New(), UserID: "u2", Most: 100, URL: "https://a.example", Secret: []byte("x"),
			OrderID: tc.order, InstanceID: tc.instance, ConnectionID: tc.connection,
		}
		if tc.connection != uuid.Nil {
			c.OfProject = "p1"
		}
		stored, err := postgres.Callbacks{DB: l.DB}.Create(t.Context(), c)
		if e := apperr.As(err); err != nil && (len(e.Fields) != 1 || e.Fields[0].Field != tc.field) ||
			(err == nil) != (tc.field == "") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (stored.ConnectionID != tc.connection ||
			stored.OfProject != map[bool]string{true: "p1", false: "p2"}[tc.connection != uuid.Nil]) {
			t.Errorf("%s: %+v", name, stored)
		}
	}
}

// TestRetireCallbacks: old callbacks that cannot get events any more are deleted once they have no delivery left.
func TestRetireCallbacks(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Orders{DB: db}
	over, alive := newOrder(2), newOrder(1)
	for _, o := range []domain.Order{over, alive} {
		place(t, store, o, long)
	}
	gone := []domain.Instance{
		with(over.Instances[0], "s0", domain.InstanceDeleted),
		refusedAs(over.Instances[1], "quota_exceeded"),
	}
	noError(t, change(t, store, gone))
	over.Instances = gone
	noError(t, store.Finalize(t.Context(), finalStatus(over)))
	names := map[uuid.UUID]string{}
	add := func(name string, instance, order uuid.UUID, status, age string) {
		t.Helper()
		id := uuid.New()
		names[id] = name
		null := func(id uuid.UUID) uuid.NullUUID { return uuid.NullUUID{UUID: id, Valid: id != uuid.Nil} }
		_, err := conn.Exec(t.Context(), `
insert into callbacks (project_id, id, user_id, url, instance_id, order_id, status, secret, updated_at)
values ('p1', $1, 'u', 'https://receiver.example.com', $2, $3, $4, '', now() - $5::interval)`, id, null(instance), null(order), status, age)
		if err != nil {
			t.Fatal(err)
		}
	}
	const old, young = "8 days", "6 days"
	add("of an order that has ended", uuid.Nil, over.ID, "verified", old)
	add("of an instance that is deleted", over.Instances[0].ID, uuid.Nil, "verified", old)
	add("gone", uuid.Nil, uuid.Nil, "gone", old)
	add("young", uuid.Nil, over.ID, "verified", young)
	add("of an order that runs", uuid.Nil, alive.ID, "verified", old)
	add("of an instance that is there", alive.Instances[0].ID, uuid.Nil, "verified", old)
	add("of the project", uuid.Nil, uuid.Nil, "suspended", old)
	noError(t, postgres.Events{DB: db}.Retire(t.Context(), 7*24*time.Hour))
	rows, _ := conn.Query(t.Context(), "select id from callbacks")
	left := map[string]bool{}
	for rows.Next() {
		var id uuid.UUID
		noError(t, rows.Scan(&id))
		left[names[id]] = true
	}
	want := map[string]bool{
		"young": true, "of an order that runs": true, "of an instance that is there": true,
		"of the project": true,
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Error(diff)
	}
}

// TestRedeliverDuringRetention: retention deletes the old delivery while its redelivery waits.
func TestRedeliverDuringRetention(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	callbacks, conn := postgres.Callbacks{DB: open(t, database)}, testkit.Connect(t, database)
	callback := testkit.AddCallback(t, conn, "p1", "https://a.example", domain.CallbackVerified, "whsec_x", "")
	testkit.AddEvents(t, conn, "p1", []string{"s"}, 1)
	delivery := testkit.Scalar[uuid.UUID](t, conn, "update deliveries set status = 'dead' returning id")
	tx := must(conn.Begin(t.Context()))(t)
	must(tx.Exec(t.Context(), "delete from events"))(t)
	answer := make(chan error)
	go func() {
		_, err := callbacks.Redeliver(t.Context(), "p1", callback, delivery, uuid.New())
		answer <- err
	}()
	watch := testkit.Connect(t, database)
	testkit.Eventually(t, 5*time.Second, "it waits for the event", func() bool {
		return testkit.Scalar[bool](t, watch,
			`select exists (select from pg_locks l join pg_stat_activity a using (pid) where not l.granted
  and a.datname = current_database())`)
	})
	noError(t, tx.Commit(t.Context()))
	wantCode(t, "got", <-answer, apperr.NotFound)
}
