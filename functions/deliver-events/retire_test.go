package deliverevents

import (
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
