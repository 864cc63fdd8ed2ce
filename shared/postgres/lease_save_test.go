package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLeaseWarning is written once, and once more when the end moves.
func TestLeaseWarning(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	store, conn := postgres.Leases{DB: open(t, database)}, testkit.Connect(t, database)
	addNodes(t, conn, 1)
	made := newLease(0, 1)
	made.Lease.BeforeEnd = 10 * time.Minute
	create(t, store, made)
	l, claim := claimOne(t, store)
	for range 2 {
		l.WarnedAt = l.CreatedAt
		if err := store.SaveStep(t.Context(), claim, l, long); err != nil || l.WarnedAt.Equal(l.CreatedAt) {
			t.Fatal(err)
		}
	}
	l.Status, l.WarnedAt = domain.LeaseStarting, time.Time{}
	if err := store.Save(t.Context(), claim, l); err != nil {
		t.Fatal(err)
	}
	data := testkit.Scalar[string](t, conn,
		"select string_agg(data->>'on_end', ' ') from events where type = 'cloudfn.lease.before_end.v1'")
	if data != "shelve" {
		t.Errorf("the warnings are %q", data)
	}
	after := *l
	after.EndsAt = after.EndsAt.Add(time.Hour)
	changed, err := store.Change(t.Context(), *l, after, nil, domain.LeaseRules{})
	if err != nil || !changed.WarnedAt.IsZero() || changed.Version != l.Version+1 {
		t.Errorf("changed is %+v: %v", changed, err)
	}
	if _, err := store.Change(t.Context(), *l, after, nil, domain.LeaseRules{}); !errors.Is(err, domain.ErrChanged) {
		t.Errorf("changed from an old version: %v", err)
	}
}

// TestLostLease: a lease whose connection is lost is due once, and can be retried with another connection.
func TestLostLease(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Leases{DB: db}
	made := newLease(time.Hour, 1)
	made.Lease.Reservations = []domain.Reservation{{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: addInstance(t, conn),
	}}
	delegated := newConnection()
	made.Connection = &delegated
	create(t, store, made)
	l, claim := claimOne(t, store)
	l.DueAt = l.StartsAt
	if err := store.Save(t.Context(), claim, l); err != nil {
		t.Fatal(err)
	}
	connections := postgres.Connections{DB: db}
	if _, err := connections.End(t.Context(), "p1", delegated.ID, domain.ConnectionLost, "gone", true); err != nil {
		t.Fatal(err)
	}
	l, claim = claimOne(t, store)
	l.Status, l.DueAt = domain.LeaseError, l.EndsAt
	l.Problem = &domain.Problem{Code: "delegation_lost", Detail: "gone"}
	if err := store.Save(t.Context(), claim, l); err != nil {
		t.Fatal(err)
	}
	if due, _, err := take(t.Context(), store.Queue(), long, 10); len(due) != 0 || err != nil {
		t.Errorf("%v are due once more: %v", due, err)
	}
	another := newConnection()
	retried, err := store.Retry(t.Context(), "p1", l.ID, &another, nil)
	if err != nil || retried.Status != domain.LeasePending || retried.Problem != nil ||
		retried.ConnectionID != another.ID || retried.Reservations[0].Status != domain.ReservationPending {
		t.Errorf("retried is %+v: %v", retried, err)
	}
	if _, err := store.Retry(t.Context(), "p1", l.ID, nil, nil); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("retried once more: %v", err)
	}
}
