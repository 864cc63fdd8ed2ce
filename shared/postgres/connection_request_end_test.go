package postgres_test

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestConnectionRequestEnds: a request ends once, and only by those who may end it.
func TestConnectionRequestEnds(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	store := postgres.ConnectionRequests{DB: open(t, database)}
	r := storedRequest(t, store, newRequest())
	for range 2 { // sent twice it is the same
		declined, err := store.Decline(t.Context(), "p1", r.ID, "u1", "not now")
		if err != nil || declined.Status != domain.RequestDeclined || declined.Reason != "not now" ||
			declined.DecidedBy != "u1" {
			t.Errorf("got %+v %v", declined, err)
		}
	}
	if _, err := store.Withdraw(t.Context(), "p2", r.ID, "u2"); apperr.CodeOf(err) != apperr.Conflict ||
		!strings.Contains(err.Error(), "declined") {
		t.Errorf("a declined one: %v", err)
	}
	if events := requestEvents(t, conn, r.ID); events != "p1 1 pending, p1 2 declined, p2 2 declined" {
		t.Errorf("its events are %s", events)
	}
	r = storedRequest(t, store, newRequest())
	if _, err := store.Withdraw(t.Context(), "p3", r.ID, "u2"); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("a stranger: %v", err)
	}
	if _, err := store.Decline(t.Context(), "p3", r.ID, "u2", ""); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("a stranger: %v", err)
	}
	if _, err := store.Withdraw(t.Context(), "p2", r.ID, "u2"); err != nil {
		t.Error(err)
	}
	own := newRequest()
	own.Requester.ProjectID = "p1" // a program asks the people of its own project
	own = storedRequest(t, store, own)
	late := storedRequest(t, store, newRequest())
	if _, err := conn.Exec(t.Context(),
		"update connection_requests set expires_at = clock_timestamp() where status = 'pending'"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := store.ClaimGrant(t.Context(), "p1", late.ID, "u1", nil,
		time.Minute); apperr.CodeOf(err) != apperr.Conflict || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("one whose time is over: %v", err)
	}
	var ended atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			n, err := store.Expire(t.Context())
			if err != nil {
				t.Error(err)
			}
			ended.Add(int64(n))
		})
	}
	all.Wait()
	if events := []string{requestEvents(t, conn, late.ID), requestEvents(t, conn, own.ID)}; ended.Load() != 2 ||
		!slices.Equal(events, []string{"p1 1 pending, p1 2 expired, p2 2 expired", "p1 1 pending, p1 2 expired"}) {
		t.Errorf("%d have ended with the events %v", ended.Load(), events)
	}
	if err := store.Retire(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), "p1", late.ID); err != nil {
		t.Errorf("it is gone too early: %v", err)
	}
	if _, err := conn.Exec(t.Context(),
		"update connection_requests set updated_at = updated_at - interval '2 hours'"); err != nil {
		t.Fatal(err)
	}
	if err := store.Retire(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*) from connection_requests"); n != 0 {
		t.Errorf("%d are kept", n)
	}
}
