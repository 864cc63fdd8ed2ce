package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLeaseIsWoken: what a lease waits for makes it due immediately, also when it happens while run-leases works on it.
func TestLeaseIsWoken(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store, actions := postgres.Leases{DB: db}, postgres.Actions{DB: db}
	delegated, instance := newConnection(), addInstance(t, conn)
	made := newLease(time.Hour, 1)
	made.Connection = &delegated
	made.Lease.Reservations = []domain.Reservation{{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: instance,
	}}
	create(t, store, made)
	another := newLease(2*time.Hour, 1) // which waits for nothing of that
	addNodes(t, conn, 1)
	create(t, store, another)
	write(t, conn, "update leases set due_at = starts_at")

	for _, happens := range []struct {
		what   string
		happen func()
	}{
		{"its action ends", func() {
			action, err := actions.Create(t.Context(), domain.DelegatedAction{
				ID: uuid.New(), ProjectID: "p1", ConnectionID: delegated.ID, InstanceID: instance, UserID: "u1",
				Request: domain.ActionRequest{Action: domain.Shelve},
			})
			if err != nil {
				t.Fatal(err)
			}
			write(t, conn, "update reservations set action_id = $1 where instance_id = $2", action.ID, instance)
			const running = "select count(*)::int from actions where status = 'running'"
			write(t, conn, "update actions set claimed_until = now() + interval '1 minute' where status = 'running'")
			err = actions.Abandon(t.Context(), action, nil)
			if err != nil || testkit.Scalar[int](t, conn, running) != 1 {
				t.Fatalf("what another replica does is abandoned: %v", err)
			}
			write(t, conn, "update actions set claimed_until = now() where status = 'running'")
			if err := actions.Abandon(t.Context(), action, nil); err != nil {
				t.Fatal(err)
			}
		}},
		{"its instance changes", func() {
			write(t, conn, "update instances set state = case state when 'active' then 'stopped' else 'active' end")
		}},
		{"its connection ends", func() {
			write(t, conn, "update connections set status = 'active'")
			ended, err := postgres.Connections{DB: db}.End(t.Context(), "p1", delegated.ID, domain.ConnectionLost,
				"gone", true)
			if err != nil || !ended {
				t.Fatal(ended, err)
			}
		}},
	} {
		what, happen := happens.what, happens.happen
		happen()
		l, claim := claimOne(t, store)
		happen()
		l.DueAt = l.EndsAt
		if err := store.SaveStep(t.Context(), claim, l, long); err != nil {
			t.Fatal(err)
		}
		l.DueAt = l.EndsAt
		if err := store.Save(t.Context(), claim, l); err != nil {
			t.Fatal(err)
		}
		if next, err := store.Queue().NextDue(t.Context(), time.Minute, nil); err != nil || next == nil || *next > 0 {
			t.Errorf("%s while it is claimed: it is due in %v: %v", what, next, err)
		}
		l, claim = claimOne(t, store)
		l.DueAt = l.EndsAt
		if err := store.Save(t.Context(), claim, l); err != nil {
			t.Fatal(err)
		}
		if next, err := store.Queue().NextDue(t.Context(), time.Minute, nil); err != nil || next != nil {
			t.Errorf("%s: it is due once more in %v: %v", what, next, err)
		}
	}
}

// TestLeasesOfNodeAreWoken: a reserved host that goes down, and one that is up again, makes its leases due immediately,
// and no others.
func TestLeasesOfNodeAreWoken(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	store, conn := postgres.Leases{DB: open(t, database)}, testkit.Connect(t, database)
	addNodes(t, conn, 2)
	for range 2 {
		create(t, store, newLease(0, 1))
	}
	write(t, conn, "update allocations set prepared_at = now()")
	write(t, conn, "update leases set status = 'active', due_at = ends_at")
	for _, status := range []string{"suspect", "down", "up"} {
		write(t, conn, "update nodes set status = $1 where name = (select min(node) from allocations)", status)
		want := 1
		if status == "suspect" {
			want = 0
		}
		if got := testkit.Scalar[int](t, conn, "select count(*)::int from leases where due_at <= now()"); got != want {
			t.Errorf("with a host that is %s %d leases are due, want %d", status, got, want)
		}
		write(t, conn, "update leases set due_at = ends_at")
	}
}
