package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// TestSuspend: nothing begins through it and what waits is left alone; it ends as an active one does, and goes on
// when it is resumed.
func TestSuspend(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, d := postgres.Connections{DB: l.DB}, postgres.Delegations{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	waiting := connectedOrder(c, 1)
	if _, err := l.Place(t.Context(), waiting, 0); err != nil {
		t.Fatal(err)
	}
	claim, err := l.Claim(t.Context(), waiting, time.Minute)
	if err != nil || !claim.Acquired {
		t.Fatal(err)
	}
	suspend := func(yes, want bool) {
		t.Helper()
		if changed, err := store.Suspend(t.Context(), "p1", c.ID, yes); err != nil || changed != want {
			t.Errorf("suspend %t: %t %v", yes, changed, err)
		}
	}
	suspend(false, false)
	suspend(true, true)
	suspend(true, false)
	found, now, err := store.Usable(t.Context(), delegator, c.ID)
	if err != nil || found.Status != domain.ConnectionSuspended ||
		apperr.CodeOf(found.Permits(now, domain.MayAllocate)) != apperr.Suspended {
		t.Errorf("it is %s: %v", found.Status, err)
	}
	if _, err := l.Place(t.Context(), connectedOrder(c, 1), 0); apperr.CodeOf(err) != apperr.Suspended {
		t.Errorf("an order: %v", err)
	}
	stop := domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(),
		UserID: "v", Request: domain.ActionRequest{Action: domain.Stop},
	}
	if _, err := (postgres.Actions{DB: l.DB}).Create(t.Context(), stop); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("an action: %v", err)
	}
	if err := l.Renew(t.Context(), waiting, claim, time.Minute); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("the order that was being worked on: %v", err)
	}
	l.exec(t, "update orders set claimed_until = now() - interval '1 second'")
	for _, q := range []struct {
		usable bool
		status string
		want   int
	}{{true, "", 0}, {false, "suspended", 1}, {false, "active", 0}, {false, "", 1}} {
		query := domain.ConnectionQuery{Usable: q.usable, Limit: 10}
		if q.status != "" {
			query.Statuses = []string{q.status}
		}
		if list, err := store.List(t.Context(), delegator, query); err != nil || len(list) != q.want {
			t.Errorf("%+v: %d %v", q, len(list), err)
		}
	}
	wait := func(want int) {
		t.Helper()
		if work, err := d.Work(t.Context(), 10); err != nil || len(work) != want {
			t.Errorf("%d have work, want %d: %v", len(work), want, err)
		}
		if busy, err := d.Busy(t.Context(), time.Minute, 0); err != nil || busy != (want > 0) {
			t.Errorf("busy is %t: %v", busy, err)
		}
	}
	wait(0)
	suspend(false, true)
	wait(1)
	suspend(true, true)
	l.exec(t, "update connections set expires_at = now()")
	if over, err := d.Ending(t.Context(), 10); err != nil || len(over) != 1 {
		t.Fatalf("it does not end: %v %v", over, err)
	}
	if ended, err := store.Expire(t.Context(), c, "its time is over", false); err != nil || !ended {
		t.Errorf("it does not end: %t %v", ended, err)
	}
	l.holds(t, `select string_agg(coalesce(data->>'previous_status', '') || '>' || (data->>'status'), ' ' order by seq) =
		'>active active>suspended suspended>active active>suspended suspended>expired' from events
		  where type = 'cloudfn.connection.state.v1'`)
	if _, err := store.Suspend(t.Context(), "p1", c.ID, false); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("resumed after its end: %v", err)
	}
}

// TestEndIgnoresNewerGeneration: a connection that was given another trust is not lost with the old one, and one that
// was given more time does not expire.
func TestEndIgnoresNewerGeneration(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, c := postgres.Connections{DB: l.DB}, l.storeConnection(t, domain.ConnectionQuota{}, nil)
	stored, err := store.Change(t.Context(), c, renewed(c, l.announce(t, c), "t2"))
	if err != nil {
		t.Fatal(err)
	}
	if ended, err := store.Lose(t.Context(), c, "", false); err != nil || ended {
		t.Errorf("lost with the old trust: %t %v", ended, err)
	}
	if ended, err := store.Expire(t.Context(), c, "", false); err != nil || ended {
		t.Errorf("expired with the old time: %t %v", ended, err)
	}
	if current, err := (postgres.Delegations{DB: l.DB}).Current(t.Context(), "p1", c.ID); err != nil ||
		current.DelegationID != "t2" || current.Generation != 2 {
		t.Errorf("it is %+v: %v", current, err)
	}
	if ended, err := store.Lose(t.Context(), stored, "", false); err != nil || !ended {
		t.Errorf("lost with the new trust: %t %v", ended, err)
	}
}
