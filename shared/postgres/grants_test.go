package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// as opens the database as a role of its own with what grants.sql gives the role of that name.
func as(t *testing.T, database, name string) *postgres.DB {
	t.Helper()
	grants, err := os.ReadFile("grants.sql")
	if err != nil {
		t.Fatal(err)
	}
	role := fmt.Sprintf("%s_%x", name, uuid.New().ID())
	conn := testkit.Connect(t, database)
	for _, sql := range []string{"create role " + role, strings.ReplaceAll(string(grants), name, role)} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("role", role)
	u.RawQuery = query.Encode()
	db := open(t, u.String())
	t.Cleanup(func() {
		db.Close()
		_, err := conn.Exec(context.Background(), "drop owned by "+role+"; drop role "+role)
		if err != nil {
			t.Error(err)
		}
	})
	return db
}

// TestGrantsOfFunctions to orders, instances and callbacks, as the role of functions that serve HTTP.
func TestGrantsOfFunctions(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	db, conn := as(t, database, "cloudfn_functions"), testkit.Connect(t, database)
	callbacks, orders, instances := postgres.Callbacks{DB: db}, postgres.Orders{DB: db}, postgres.Instances{DB: db}
	allowed := func(what string, err error) {
		t.Helper()
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			t.Errorf("%s: %s", what, pg.Message)
		} else if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	c, err := callbacks.Create(ctx, domain.Callback{
		Most:      100,
		ProjectID: "p1", ID: uuid.New(), UserID: "u", URL: "https://a.example",
		Secret: []byte("x"),
	})
	allowed("create", err)
	o := newOrder(2)
	o.Callback = &domain.Callback{
		Most:      100,
		ProjectID: "p1", ID: uuid.New(), UserID: "u", URL: "https://b.example", OrderID: o.ID,
		Secret: []byte("x"),
	}
	claim, err := orders.Place(ctx, o, long)
	allowed("place", err)
	allowed("keyed", orders.RecordFingerprint(ctx, o, claim, "f"))
	allowed("decide", orders.Decide(ctx, claim, with(o.Instances[0], "s0", domain.InstanceBuilding)))
	_, err = instances.Change(ctx, []domain.Instance{with(o.Instances[0], "s0", domain.InstanceActive)})
	allowed("change an instance", err)
	allowed("finalize", orders.Finalize(ctx, finalStatus(o)))
	_, err = instances.Find(ctx, domain.Filter{ProjectID: "p1"}, []string{o.Instances[0].ID.String()})
	allowed("named", err)
	status := domain.CallbackSuspended
	for range 2 {
		_, _, err = callbacks.Change(ctx, "p1", c.ID, domain.CallbackChange{Status: &status})
		allowed("change to "+string(status), err)
		status = domain.CallbackVerified
	}
	_, err = callbacks.Rotate(ctx, "p1", c.ID, []byte("y"), time.Hour)
	allowed("rotate", err)
	_, err = callbacks.Test(ctx, "p1", c.ID, uuid.New())
	allowed("test", err)
	delivery := testkit.Scalar[uuid.UUID](t, conn,
		`update deliveries set status = 'dead' where id = (select id from deliveries where callback_id = $1
  limit 1) returning id`, c.ID)
	_, err = callbacks.Deliveries(ctx, "p1", c.ID, domain.DeliveryQuery{Limit: 1, Marker: delivery})
	allowed("deliveries", err)
	_, err = callbacks.Redeliver(ctx, "p1", c.ID, delivery, uuid.New())
	allowed("redeliver", err)
	allowed("delete", callbacks.Delete(ctx, "p1", c.ID))
}

// TestRedeliverDuringRetention: retention deletes the old delivery while its redelivery waits.
func TestRedeliverDuringRetention(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	callbacks, conn := postgres.Callbacks{DB: open(t, database)}, testkit.Connect(t, database)
	callback := testkit.AddCallback(t, conn, "p1", "https://a.example", domain.CallbackVerified, "whsec_x", "")
	testkit.AddEvents(t, conn, "p1", []string{"s"}, 1)
	delivery := testkit.Scalar[uuid.UUID](t, conn, "update deliveries set status = 'dead' returning id")
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "delete from events"); err != nil {
		t.Fatal(err)
	}
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
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("got %v", err)
	}
}
