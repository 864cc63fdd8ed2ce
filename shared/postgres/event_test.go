package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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

// TestMarkDeliveredConcurrently: two callbacks, each with an event about the other, are suspended at once. Each locks
// the row that the other's event is written to, so Postgres aborts one of the two statements, and that one is retried.
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
	if err := <-retired; err != nil {
		t.Error(err)
	}
	if n := testkit.Scalar[int](t, m.conn, "select count(*)::int from deliveries"); n != 0 {
		t.Errorf("%d deliveries are left", n)
	}
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
	if err := m.events.Retire(t.Context(), 7*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	if n := testkit.Scalar[int](t, m.conn, "select count(*)::int from events"); n != 2 {
		t.Errorf("%d events are left, want one and the hour's", n)
	}
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
		err := postgres.RetryDeadlock(t.Context(), collide)
		if err == nil || len(at) < 3 || slices.Index(at[1:], 0) >= 0 || !slices.IsSorted(at) ||
			at[len(at)-1] > time.Second {
			t.Errorf("tries at %s, %v", at, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		at = nil
		if err := postgres.RetryDeadlock(ended, collide); err == nil || len(at) != 1 {
			t.Errorf("after the request has ended: tries at %s, %v", at, err)
		}
	})
}
