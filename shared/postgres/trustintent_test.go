package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestTrustIntent is forgotten with its connection. One that is abandoned is listed with pauses until it is done, and lets no connection be stored.
func TestTrustIntent(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store, connections := postgres.TrustIntents{DB: db}, postgres.Connections{DB: db}
	last := time.Now().UTC().Truncate(time.Second)
	intent := func() domain.TrustIntent {
		last = last.Add(time.Minute)
		i := domain.TrustIntent{ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", UserID: "u1", EndsAt: last}
		for range 2 { // Keystone has refused the first end
			i.EndsAt = i.EndsAt.Add(time.Second)
			if free, err := store.Begin(t.Context(), i); err != nil || !free {
				t.Fatal(free, err)
			}
		}
		return i
	}
	abandoned := func() []domain.TrustIntent {
		t.Helper()
		found, err := store.Abandoned(t.Context(), 10, time.Minute, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	connect := func(i domain.TrustIntent) error {
		c := newConnection()
		c.ID, c.Kind, c.Secret = i.ID, domain.TrustConnection, nil
		_, err := connections.Create(t.Context(), c)
		return err
	}

	good, refused, bad := intent(), intent(), intent()
	same := domain.TrustIntent{ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", UserID: "u1", EndsAt: bad.EndsAt.Add(time.Millisecond)}
	if free, err := store.Begin(t.Context(), same); free || err != nil {
		t.Errorf("the same second is free: %v %v", free, err)
	}
	if found := abandoned(); len(found) != 0 {
		t.Errorf("%v are abandoned while they are made", found)
	}
	if err := connect(good); err != nil {
		t.Error(err)
	}
	if err := store.Drop(t.Context(), "p1", refused.ID); err != nil {
		t.Error(err)
	}
	if _, err := conn.Exec(t.Context(), "update trust_intents set not_before = clock_timestamp()"); err != nil {
		t.Fatal(err)
	}
	if found := abandoned(); len(found) != 1 || found[0] != (domain.TrustIntent{ID: bad.ID, ProjectID: "p1", UserID: "u1", EndsAt: found[0].EndsAt}) || !found[0].EndsAt.Equal(bad.EndsAt) {
		t.Errorf("abandoned are %v, want %v", found, bad)
	}
	if found := abandoned(); len(found) != 0 {
		t.Errorf("%v is listed without a pause", found)
	}
	_, beginErr := store.Begin(t.Context(), bad)
	for what, err := range map[string]error{"its connection": connect(bad), "another end": beginErr} {
		if apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := store.Drop(t.Context(), "p1", bad.ID); err != nil { // by its maker, which is too slow
		t.Error(err)
	}
	if err := store.Gone(t.Context(), "p1", bad.ID); err != nil {
		t.Error(err)
	}
	if _, err := conn.Exec(t.Context(), "update trust_intents set not_before = clock_timestamp()"); err != nil {
		t.Fatal(err)
	}
	if found := abandoned(); len(found) != 0 {
		t.Errorf("%v is listed when it is done", found)
	}
	if err := connect(bad); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("its connection, later still: %v", err)
	}
	if err := store.Retire(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*) from trust_intents"); n != 0 {
		t.Errorf("%d are left", n)
	}
}
