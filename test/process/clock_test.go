package process_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// paused is an installation with a callback whose only delivery pauses, and nothing else that deliver-events has to do.
func paused(t *testing.T) (database string, conn *pgx.Conn, receiver *testkit.Receiver) {
	t.Helper()
	database = testkit.Database(t)
	conn, receiver = testkit.Connect(t, database), testkit.NewSDKReceiver(t)
	const key = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	testkit.AddCallback(t, conn, "p", receiver.URL, domain.CallbackVerified, key, "")
	testkit.AddEvents(t, conn, "p", []string{uuid.NewString()}, 1)
	change(t, conn,
		"insert into jobs (kind, key, due_at) values ('deliver-events', 'retire', now() + interval '1 hour')")
	change(t, conn, "update streams set next_at = now() + interval '2 seconds'")
	return database, conn, receiver
}

// TestDaemonHasAClock: without an event from outside, the daemon delivers when a pause ends. Its clock ticks at the
// start, finds that the pause ends before the next tick, and wakes deliver-events then.
func TestDaemonHasAClock(t *testing.T) {
	t.Parallel()
	database, _, r := paused(t)
	p := testkit.Spawn(t, testkit.DaemonEnv(t, database))
	testkit.Eventually(t, 30*time.Second, "the event is delivered", func() bool { return len(r.Events()) == 1 })
	p.Terminate(t, 20*time.Second)
	for line := range strings.Lines(p.Log()) {
		isTick := strings.Contains(line, `"msg":"event"`) && strings.Contains(line, `"type":"dev.knative.sources.ping"`)
		hasSource := strings.Contains(line, `"function":"clock"`) || strings.Contains(line, `"function":"collect-stats"`)
		if isTick && !hasSource {
			t.Errorf("another function has a tick: %s", line)
		}
	}
}

// TestLongClockIsKilled: a clock is killed while it has planned something, and deliver-events cannot be woken at first:
// nothing is lost.
func TestLongClockIsKilled(t *testing.T) {
	t.Parallel()
	database, conn, r := paused(t)
	f := newFleet(t, testkit.Env(t, database, nil), "clock")
	tick := func() { go func(p *testkit.Process) { _, _ = p.TryTick(t, "clock") }(f.of("clock")) }
	tick()
	testkit.Eventually(t, 30*time.Second, "the clock could not wake deliver-events", func() bool {
		return testkit.Scalar[bool](t, conn,
			"select exists (select from wake_failures where function = 'deliver-events')")
	})
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events where subject like 'monitor/%'"); n != 0 {
		t.Errorf("a monitor has failed after seconds")
	}
	f.of("clock").Kill()
	f.start(t, "clock")
	f.start(t, "deliver-events")
	tick()
	testkit.Eventually(t, 30*time.Second, "the event is delivered", func() bool { return len(r.Events()) == 1 })
	testkit.Eventually(t, 30*time.Second, "the clock has woken deliver-events", func() bool {
		return testkit.Scalar[bool](t, conn,
			"select not exists (select from wake_failures where function = 'deliver-events')")
	})
}

// TestLongIdle: when nothing happens, no function has an event but the clock, and that ends immediately.
func TestLongIdle(t *testing.T) {
	t.Parallel()
	env := testkit.DaemonEnv(t, testkit.Database(t))
	delete(env, "NODES_OS_CLOUD") // with an account the hosts are polled each minute
	p := testkit.Spawn(t, env)
	time.Sleep(90 * time.Second) // all functions register their jobs, and do what is due at first
	began := time.Now()
	time.Sleep(130 * time.Second)
	p.Terminate(t, 20*time.Second)
	ticks := 0
	for line := range strings.Lines(p.Log()) {
		var entry struct {
			Time          time.Time
			Msg, Function string
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Msg != "event" || entry.Time.Before(began) {
			continue
		}
		if ticks++; entry.Function != "clock" {
			t.Errorf("a function is woken: %s", line)
		}
	}
	if ticks < 2 || ticks > 3 {
		t.Errorf("there were %d events in 130 s", ticks)
	}
}
