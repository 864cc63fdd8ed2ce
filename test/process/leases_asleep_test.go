package process_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// sleeper is a project with leases in the database whose instances are where they have to be, so that run-leases needs
// no cloud.
type sleeper struct {
	*lessee

	runner *testkit.Process // run-leases, without a service account
	base   time.Time        // by the database's clock
}

// newSleeper makes one whose database's clock is so far ahead of this machine's.
func newSleeper(t *testing.T, ahead time.Duration) sleeper {
	t.Helper()
	s := sleeper{lessee: &lessee{Project: testkit.NewProject(t), database: testkit.Database(t)}}
	if ahead != 0 {
		testkit.SetClock(t, s.database, time.Now().Add(ahead))
	}
	s.token, s.conn = s.Token(t), testkit.Connect(t, s.database)
	s.process = testkit.Spawn(t, testkit.Env(t, s.database, map[string]string{"FUNCTION_TARGET": "leases"}))
	s.runner = testkit.Spawn(t, testkit.Env(t, s.database, map[string]string{
		"FUNCTION_TARGET": "run-leases", "LEASES_OS_CLOUD": "", "OS_CLOUD": "", "OS_AUTH_URL": testkit.KeystoneURL(t),
	}))
	s.base = testkit.Scalar[time.Time](t, s.conn, "select clock_timestamp()")
	return s
}

// has stores a lease, from and until so long after the base, with a warning 10 minutes
// before its end: of an instance in a state, or of a host if that is "".
func (s sleeper) has(t *testing.T, status string, from, until time.Duration, state string) (id string) {
	t.Helper()
	id = uuid.Must(uuid.NewV7()).String()
	raw := map[string]string{"active": "ACTIVE", "shelved": "SHELVED_OFFLOADED"}[state]
	_, err := s.conn.Exec(t.Context(), `
with given as (
    select $1::text as project_id, $2::uuid as id, $5::text as status, $6::timestamptz as starts_at,
           $9::timestamptz as ends_at, $7::text as state, $7::text <> '' as is_instance,
           $5::text = 'active' as is_active
), i as (
    insert into instances (project_id, id, name, server_id, state, raw_status, origin, spec, seq, position)
    select project_id, id, 'vm', id::text, state, $8, 'connected', '{}', 1, 0 from given where is_instance
), l as (
    insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, before_end, on_end,
                        start_result, started_at, due_at)
    select project_id, id, $3, $4, 'slept over', status, starts_at, ends_at, '10 minutes', 'shelve',
           case when is_active then 'done' else '' end, case when is_active then starts_at end, clock_timestamp()
    from given
), r as (
    insert into reservations (project_id, id, lease_id, position, type, status, instance_id, want)
    select project_id, id, id, 0, case when is_instance then 'instance' else 'host' end, status,
           case when is_instance then id end, case when not is_instance then '{"min": 1, "max": 1}'::jsonb end
    from given
)
insert into allocations (project_id, reservation_id, node, during)
select project_id, id, id::text, tstzrange(starts_at, ends_at) from given where not is_instance`,
		s.ID, id, s.DomainID, s.UserID, status, s.base.Add(from), state, raw, s.base.Add(until))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// are checks the status of leases, and the events that the API shows.
func (s sleeper) are(t *testing.T, want map[string]string) {
	t.Helper()
	for id, want := range want {
		shown := s.show(t, id)
		got := []string{shown.Status}
		for _, e := range shown.Events {
			got = append(got, e.Type+":"+e.Status)
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("it is %s, want %s: %+v", got, want, shown.Reason)
		}
	}
}

func (s sleeper) tickOnce(t *testing.T) {
	t.Helper()
	if a := s.runner.Tick(t, "run-leases"); a.Status != http.StatusNoContent {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
}

// TestLongLeasesAsleep: after three hours without run-leases one tick does what was missed: of what was due at one
// instant the ends come before the starts, and what was slept over whole never starts.
func TestLongLeasesAsleep(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, 0)
	h := time.Hour
	want := map[string]string{
		s.has(t, "pending", -2*h, -h, "shelved"):          "ended start:skipped before_end:skipped end:done",
		s.has(t, "pending", -2*h, -h, ""):                 "ended start:skipped before_end:skipped end:done",
		s.has(t, "active", -4*h, 5*time.Minute, "active"): "active start:done before_end:done end:pending",
		s.has(t, "pending", h, 2*h, "shelved"):            "pending start:pending before_end:pending end:pending",
	}
	for range 10 { // at one instant, and more than run-leases claims concurrently
		want[s.has(t, "pending", -2*h, h, "active")] = "active start:done before_end:pending end:pending"
		want[s.has(t, "active", -4*h, -2*h, "shelved")] = "ended start:done before_end:skipped end:done"
	}
	s.tickOnce(t)
	s.are(t, want)
	if !testkit.Scalar[bool](t, s.conn, `
select max(ended_at) <= (select min(started_at) from leases where status = 'active' and started_at > $1)
from leases where status = 'ended'`, s.base) {
		t.Error("a lease started before another one ended")
	}
	if n := testkit.Scalar[int](t, s.conn, `
select count(*)::int from allocations where upper(during) > $1 and not isempty(during)`, s.base); n != 0 {
		t.Errorf("%d hosts are still reserved", n)
	}
}

// TestStartIsAwaited: one tick does what becomes due before the next one, with no other event in between.
func TestStartIsAwaited(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, 0)
	const pending = "pending start:pending before_end:pending end:pending"
	want := map[string]string{
		s.has(t, "pending", 2*time.Second, time.Hour, "active"):  "active start:done before_end:pending end:pending",
		s.has(t, "active", -time.Hour, 3*time.Second, "shelved"): "ended start:done before_end:done end:done",
		s.has(t, "pending", 2*time.Minute, time.Hour, "shelved"): pending,
	}
	s.tickOnce(t)
	s.are(t, want)
}

// TestLongClockOfAProcess: the clock of a process may be ten minutes off either way. Go reads the clock without a
// system call, so that a process cannot be given a wrong one; instead the database's, by which leases go, is moved.
func TestLongClockOfAProcess(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			s := newSleeper(t, ahead)
			s.exec(t, `insert into nodes (name, zone, pool, vcpus, ram_mb, disk_gb)
				values ('n001', 'nova', 'reservable', 32, 65536, 1000)`) // no cloud has it: only the database decides
			m := time.Minute
			want := map[string]string{
				s.has(t, "pending", -2*m, 20*m, "active"):  "active start:done before_end:pending end:pending",
				s.has(t, "pending", 2*m, 20*m, "shelved"):  "pending start:pending before_end:pending end:pending",
				s.has(t, "active", -20*m, -2*m, "shelved"): "ended start:done before_end:skipped end:done",
				s.has(t, "active", -20*m, 2*m, "active"):   "active start:done before_end:done end:pending",
				s.has(t, "active", -20*m, 12*m, "active"):  "active start:done before_end:pending end:pending",
			}
			s.tickOnce(t)
			s.are(t, want)

			id := s.lease(t, fmt.Sprintf(`{"name": "now", "start": %q, "duration": "PT1H",
				"reservations": [{"type": "host", "flavors": [%q]}]}`, s.base.Add(-5*m).Format(time.RFC3339Nano),
				testkit.Sandbox(t).Flavor)).ID // a start in the past is now
			if off := testkit.Scalar[float64](t, s.conn,
				"select extract(epoch from starts_at - $2)::float8 from leases where id = $1", id, s.base); off < 0 || off > 60 {
				t.Errorf("a lease from now starts %.0f s after the database's now", off)
			}
		})
	}
}
