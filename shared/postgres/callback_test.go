package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestCallbacksChangeWhileTheyAreDelivered: owners change, rotate, test and delete callbacks while events are written and
// two copies deliver. No owner's change fails, no event is lost, and what is deleted leaves nothing. A copy that delivers may
// be the one that Postgres chooses to end a deadlock: its claim ends by itself.
func TestCallbacksChangeWhileTheyAreDelivered(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 16}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	conn := testkit.Connect(t, database)
	callbacks, outbox := postgres.Callbacks{DB: db}, postgres.Outbox{DB: db}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	verify := "update callbacks set status = 'verified' where project_id = 'p' and id = $1"
	made := func() (uuid.UUID, error) {
		c, err := callbacks.Create(ctx, domain.Callback{ProjectID: "p", ID: uuid.Must(uuid.NewV7()), UserID: "u", URL: "https://a.example", Secret: []byte("x")})
		return c.ID, err
	}
	var mu sync.Mutex
	var deaths []string
	note := func(what string, err error) {
		pg, _ := errors.AsType[*pgconn.PgError](err)
		delivers := what == "deliver" || what == "finish" || what == "verify"
		known := err == nil || delivers && pg != nil && pg.Code == "40P01" || ctx.Err() != nil || errors.Is(err, domain.ErrFenced) || apperr.CodeOf(err) == apperr.NotFound || apperr.CodeOf(err) == apperr.Conflict
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
		if ids[i], err = made(); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, verify, ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	writer := testkit.Connect(t, database)
	again("write", func(n int) error {
		_, err := writer.Exec(ctx, "insert into events (project_id, subject, seq, type, at, data) select 'p', 's' || s, $1, 'x', now(), '{}' from generate_series(1, 5) s", n)
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
	again("test", func(n int) error { _, err := callbacks.Test(ctx, "p", ids[n%len(ids)]); return err })
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
					_, _, err = outbox.Failed(ctx, a, domain.Outcome{Answer: 500, Reason: "x"}, time.Hour)
				} else {
					_, err = outbox.Delivered(ctx, a, 200, false, time.Minute)
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
	if n := testkit.Scalar[int](t, conn, "select (select count(*) from streams where callback_id = any($1)) + (select count(*) from deliveries where callback_id = any($1))", ids[:]); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*) from events where type = 'cloudfn.callback.state.v1'"); n == 0 {
		t.Error("no change was told")
	}
}
