package deliverevents

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// callbacksOf is what the function callbacks does with the database.
func callbacksOf(t *testing.T, database string) postgres.Callbacks {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return postgres.Callbacks{DB: db}
}

// statesOf are the states of a callback in the events that a receiver got.
func statesOf(r *testkit.Receiver, callback uuid.UUID) []string {
	var states []string
	for _, e := range r.Events() {
		if _, state, ok := strings.Cut(e.Data, `"status": "`); ok && e.Type == domain.CallbackEvent &&
			e.Subject == callback.String() {
			state, _, _ = strings.Cut(state, `"`)
			states = append(states, state)
		}
	}
	return slices.Compact(states)
}

// TestDeliveryEndsAfterThreeDays: after three days of the database's clock a delivery is dead, and listed. A callback
// that took nothing in all that time is suspended, and the others get an event about it. It collects events meanwhile,
// and gets all of them when it is verified again.
func TestDeliveryEndsAfterThreeDays(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	var broken, choosy atomic.Bool
	broken.Store(true)
	choosy.Store(true)
	instances := subjects(3)
	answers := func(refuses func(*http.Request) bool) *testkit.Receiver {
		var r *testkit.Receiver
		r = testkit.NewReceiver(t, func(w http.ResponseWriter, req *http.Request) {
			if refuses(req) {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			r.TakeRequest(req)
		})
		return r
	}
	bad := answers(func(*http.Request) bool { return broken.Load() })
	poisoned := answers(func(r *http.Request) bool {
		return choosy.Load() && r.Header.Get("Ce-Id") == instances[0]+":1"
	})
	good := testkit.NewSDKReceiver(t)
	badID := testkit.AddCallback(t, conn, project, bad.URL, domain.CallbackVerified, secret(), "")
	poisonedID := testkit.AddCallback(t, conn, project, poisoned.URL, domain.CallbackVerified, secret(), "")
	testkit.AddCallback(t, conn, project, good.URL, domain.CallbackVerified, secret(), "")
	testkit.AddEvents(t, conn, project, instances, 2)
	first := start(t, env(t, database))
	first.Tick(t, "deliver-events")
	complete(t, 5*time.Second, good, instances, 2)
	complete(t, 5*time.Second, poisoned, instances[1:], 2)
	// Its answers came in any order. One that took nothing after its first failure would be suspended, too.
	const tookOne = "update callbacks set failing_since = null where id = $1"
	if _, err := conn.Exec(t.Context(), tookOne, poisonedID); err != nil {
		t.Fatal(err)
	}

	testkit.SetClock(t, database, time.Now().Add(71*time.Hour))
	almost := start(t, env(t, database))
	almost.Tick(t, "deliver-events")
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from deliveries where status = 'dead'"); n != 0 {
		t.Errorf("%d deliveries are dead after 71 hours", n)
	}

	testkit.SetClock(t, database, time.Now().Add(73*time.Hour))
	later := start(t, env(t, database))
	later.Tick(t, "deliver-events")
	testkit.Eventually(t, 15*time.Second, "the others hear that it is suspended", func() bool {
		later.Tick(t, "deliver-events")
		return slices.Equal(statesOf(good, badID), []string{"suspended"}) &&
			slices.Equal(statesOf(poisoned, badID), []string{"suspended"})
	})
	complete(t, 5*time.Second, poisoned, instances[1:], 2)
	if got := statusOf(t, conn, poisonedID); got != domain.CallbackVerified {
		t.Errorf("the one that took others is %s", got)
	}
	dead := deadOf(t, conn, poisonedID)
	if len(dead) != 1 || dead[0].subject != instances[0] || dead[0].answer != 500 || dead[0].attempts != 3 {
		t.Errorf("dead are %+v", dead)
	}
	if e := poisoned.Events(); !slices.ContainsFunc(e,
		func(e testkit.Received) bool { return e.ID == instances[0]+":2" }) {
		t.Error("what comes after a dead delivery was not delivered")
	}

	// By hand: the dead one again, and the suspended callback. Nothing that happened meanwhile is lost.
	choosy.Store(false)
	broken.Store(false)
	testkit.AddEvents(t, testkit.Pool(t, database), project, instances, 1)
	callbacks := callbacksOf(t, database)
	if _, err := callbacks.Redeliver(t.Context(), project, poisonedID, dead[0].id, uuid.New()); err != nil {
		t.Fatal(err)
	}
	verified := domain.CallbackVerified
	change := domain.CallbackChange{Status: &verified}
	if _, _, err := callbacks.Change(t.Context(), project, badID, change); err != nil {
		t.Fatal(err)
	}
	later.Tick(t, "deliver-events")
	testkit.Eventually(t, 10*time.Second, "all is delivered but what died", func() bool {
		later.Tick(t, "deliver-events")
		return testkit.Scalar[int](t, conn, "select count(*)::int from deliveries where status = 'due'") == 0
	})
	if e := poisoned.Events(); !slices.ContainsFunc(e,
		func(e testkit.Received) bool { return e.ID == instances[0]+":1" }) {
		t.Error("the dead delivery was not redelivered")
	}
	for _, s := range instances {
		if n := bad.InOrder(t)[s] + countDead(t, conn, badID, s); n != 3 {
			t.Errorf("%d of 3 events of %s were delivered or are listed as dead", n, s)
		}
	}
}

type deadOne struct {
	id               uuid.UUID
	subject          string
	answer, attempts int
}

func deadOf(t *testing.T, conn *pgx.Conn, callback uuid.UUID) []deadOne {
	t.Helper()
	rows, _ := conn.Query(t.Context(),
		`select id, subject, answer, attempts from deliveries where callback_id = $1 and status = 'dead' order by subject,
  seq`, callback)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d deadOne, err error) {
		return d, row.Scan(&d.id, &d.subject, &d.answer, &d.attempts)
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func countDead(t *testing.T, conn *pgx.Conn, callback uuid.UUID, subject string) int {
	t.Helper()
	n := 0
	for _, d := range deadOf(t, conn, callback) {
		if d.subject == subject {
			n++
		}
	}
	return n
}

// TestGone: a receiver that answers 410 gets nothing more, now and later, and the others get an event about it.
func TestGone(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	gone, good := testkit.BadReceivers(t)["410"], testkit.NewSDKReceiver(t)
	goneID := testkit.AddCallback(t, conn, project, gone.URL, domain.CallbackVerified, secret(), "")
	testkit.AddCallback(t, conn, project, good.URL, domain.CallbackVerified, secret(), "")
	instances := subjects(30)
	testkit.AddEvents(t, conn, project, instances, 3)
	p := start(t, env(t, database))
	p.Tick(t, "deliver-events")
	testkit.Eventually(t, 5*time.Second, "the other one hears of it",
		func() bool { return slices.Equal(statesOf(good, goneID), []string{"gone"}) })
	requests := gone.Posts()
	if requests > perCallback {
		t.Errorf("it got %d requests", requests)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from deliveries where callback_id = $1 and status = 'dead'",
		goneID); n != 90 {
		t.Errorf("%d of 90 deliveries are dead", n)
	}
	testkit.AddEvents(t, conn, project, instances, 1)
	p.Tick(t, "deliver-events")
	complete(t, 5*time.Second, good, instances, 4)
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from deliveries where callback_id = $1", goneID); n != 90 ||
		gone.Posts() != requests {
		t.Errorf("%d deliveries, requests %d and then %d times", n, requests, gone.Posts())
	}
	if got := statusOf(t, conn, goneID); got != domain.CallbackGone {
		t.Errorf("it is %s", got)
	}
}

// TestOldEventsAreDeleted with their deliveries, whatever became of these, and nothing else does.
func TestOldEventsAreDeleted(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	good := testkit.NewSDKReceiver(t)
	testkit.AddCallback(t, conn, project, good.URL, domain.CallbackSuspended, secret(), "")
	instances := subjects(2)
	testkit.AddEvents(t, conn, project, instances, 2)
	if _, err := conn.Exec(t.Context(),
		"update events set at = now() - interval '169 hours' where seq = 1 or subject = $1", instances[1]); err != nil {
		t.Fatal(err)
	}
	start(t, env(t, database)).Tick(t, "deliver-events")
	for what, want := range map[string]int{
		"select count(*)::int from events":                                                             1,
		"select count(*)::int from deliveries":                                                         1,
		"select head::int from streams where stream = '" + project + "/" + instances[0] + "'":          1,
		"select (tail - head)::int from streams where stream = '" + project + "/" + instances[1] + "'": 0,
	} {
		if n := testkit.Scalar[int](t, conn, what); n != want {
			t.Errorf("%s: %d, want %d", what, n, want)
		}
	}
}

// TestDeliveriesDoNotWaitForRetention: while old events are being deleted, which takes long, new ones are delivered.
// The event is answered when both have ended.
func TestDeliveriesDoNotWaitForRetention(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	receiver := testkit.NewSDKReceiver(t)
	testkit.AddCallback(t, conn, project, receiver.URL, domain.CallbackVerified, secret(), "")
	instances := subjects(2)
	testkit.AddEvents(t, conn, project, instances, 2)
	run(`select pg_advisory_lock(1);
create function wait_for_test() returns trigger language plpgsql set lock_timeout = 0 as $$
begin perform pg_advisory_xact_lock_shared(1); return null; end $$;
create trigger wait_for_test before delete on events for each statement execute function wait_for_test()`)
	const isWaiting = "select exists (select from pg_locks where locktype = 'advisory' and not granted" +
		" and database = (select oid from pg_database where datname = current_database()))"
	p, answered := start(t, env(t, database, "EVENT_TIMEOUT", "5m")), make(chan int, 1)
	go func() {
		a, err := p.TryTick(t, "deliver-events")
		if err != nil {
			t.Error(err)
		}
		answered <- a.Status
	}()
	testkit.Eventually(t, 20*time.Second, "old events are being deleted",
		func() bool { return testkit.Scalar[bool](t, conn, isWaiting) })
	complete(t, 20*time.Second, receiver, instances, 2)
	if !testkit.Scalar[bool](t, conn, isWaiting) || len(answered) != 0 {
		t.Error("the event has not waited for retention")
	}
	run("select pg_advisory_unlock(1)")
	if status := <-answered; status != http.StatusNoContent {
		t.Errorf("got %d", status)
	}
}
