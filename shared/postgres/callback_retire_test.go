package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
	if err := change(t, store, gone); err != nil {
		t.Fatal(err)
	}
	over.Instances = gone
	if err := store.Finalize(t.Context(), finalStatus(over)); err != nil {
		t.Fatal(err)
	}
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
	add("of an order that is over", uuid.Nil, over.ID, "verified", old)
	add("of an instance that is deleted", over.Instances[0].ID, uuid.Nil, "verified", old)
	add("gone", uuid.Nil, uuid.Nil, "gone", old)
	add("young", uuid.Nil, over.ID, "verified", young)
	add("of an order that runs", uuid.Nil, alive.ID, "verified", old)
	add("of an instance that is there", alive.Instances[0].ID, uuid.Nil, "verified", old)
	add("of the project", uuid.Nil, uuid.Nil, "suspended", old)
	if err := (postgres.Events{DB: db}).Retire(t.Context(), 7*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	rows, _ := conn.Query(t.Context(), "select id from callbacks")
	left := map[string]bool{}
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
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
