package process_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// lessee is a project that leases, with every function in one process.
type lessee struct {
	*testkit.Project

	database, token string
	env             map[string]string
	conn            *pgx.Conn
	process         *testkit.Process
}

func newLessee(t *testing.T, more map[string]string) *lessee {
	t.Helper()
	l := &lessee{Project: testkit.NewProject(t), database: testkit.Database(t)}
	l.token, l.conn = l.Token(t), testkit.Connect(t, l.database)
	l.env = testkit.Env(t, l.database, map[string]string{
		"LEASES_OS_CLOUD": "leases", "ALLOWED_PROJECTS": l.ID, "STATS_BACKFILL": "1h", "POLL_PAUSE": "500ms",
	})
	maps.Copy(l.env, more)
	l.process = testkit.Spawn(t, l.env)
	return l
}

func (l *lessee) client() *testkit.Client { return l.process.As(l.token) }

// launch has cloudfn make a server, and returns its instance's and its own id.
func (l *lessee) launch(t *testing.T, rest string) (instance, server string) {
	t.Helper()
	s := testkit.Sandbox(t)
	made := l.client().Post(t, "/v1/launch", fmt.Sprintf(
		`{"name": "leased", "flavor": %q, "image": %q, "networks": [%q]%s}`, s.Flavor, s.Image, s.Network, rest))
	if made.Status != http.StatusAccepted {
		t.Fatalf("launch: %d %s", made.Status, made.Body)
	}
	var o ordered
	made.JSON(t, &o)
	testkit.Eventually(t, 4*time.Minute, "the server is launched", func() bool {
		time.Sleep(time.Second)
		l.client().Get(t, "/v1/launch/"+o.ID).JSON(t, &o)
		if o.Status != "running" && o.Status != "done" {
			t.Fatalf("the launch is %s: %+v", o.Status, o.Instances)
		}
		return o.Status == "done"
	})
	return o.Instances[0].ID, o.Instances[0].ServerID
}

type shownLease struct {
	ID, Status   string
	Degraded     bool
	Reason       *struct{ Code, Detail string }
	Reservations []struct {
		ID, Status string
		Flavors    []struct{ ID, Name string }
	}
	Events []struct{ Type, Status string }
}

// lease makes a lease, and returns its id.
func (l *lessee) lease(t *testing.T, body string) shownLease {
	t.Helper()
	made := l.client().Post(t, "/v1/leases", body)
	if made.Status != http.StatusCreated {
		t.Fatalf("lease: %d %s", made.Status, made.Body)
	}
	var lease shownLease
	made.JSON(t, &lease)
	return lease
}

func (l *lessee) show(t *testing.T, id string) (lease shownLease) {
	t.Helper()
	l.client().Get(t, "/v1/leases/"+id).JSON(t, &lease)
	return lease
}

// becomes waits until a lease has a status.
func (l *lessee) becomes(t *testing.T, id string, status domain.LeaseStatus) (lease shownLease) {
	t.Helper()
	defer func() {
		if lease.Status != string(status) {
			t.Logf("the lease is %+v, its problem %+v; actions: %s", lease, lease.Reason,
				testkit.Scalar[string](t, l.conn, `
select coalesce(string_agg(concat_ws(' ', a.verb, a.status, a.problem->>'detail', i.raw_status), ', '
                           order by a.created_at), '')
from actions a join instances i on i.id = a.instance_id where i.lease_id = $1`, id))
		}
	}()
	testkit.Eventually(t, 4*time.Minute, "the lease is "+string(status), func() bool {
		l.tick()
		lease = l.show(t, id)
		return lease.Status == string(status)
	})
	return lease
}

// tick is what the clock does when something is due. It does not wait until the work is done.
func (l *lessee) tick() { l.wake("run-leases") }

func (l *lessee) wake(function string) {
	ping(l.process, function)
	time.Sleep(time.Second)
}

// ping sends a tick to a process that may be killed, and does not wait for the answer.
func ping(p *testkit.Process, function string) {
	e := eventx.Ping(function, domain.Secret(p.Key), time.Now())
	event, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.URL+"/events/"+function,
		http.NoBody)
	if err != nil {
		panic(err)
	}
	for name, value := range map[string]string{
		"Ce-Specversion": e.SpecVersion(), "Ce-Id": e.ID(), "Ce-Type": e.Type(), "Ce-Source": e.Source(),
		"Ce-Cloudfnkey": p.Key,
	} {
		event.Header.Set(name, value)
	}
	go func() {
		if answer, err := http.DefaultClient.Do(event); err == nil {
			_ = answer.Body.Close()
		}
	}()
}

// at moves the times of a lease in the database.
func (l *lessee) at(t *testing.T, id, changes string) {
	t.Helper()
	_, err := l.conn.Exec(context.Background(), `
with l as (
    update leases set `+changes+`, due_at = clock_timestamp(), version = version + 1 where id = $1 returning *
)
update allocations a set during = tstzrange(least(lower(a.during), ends_at - interval '1 millisecond'), ends_at)
from l join reservations r on r.lease_id = l.id where a.reservation_id = r.id and ends_at <= clock_timestamp()`, id)
	if err != nil {
		t.Fatal(err)
	}
}

// events are the statuses in the events of a lease, in order, without the changes by its user.
func (l *lessee) events(t *testing.T, id string) string {
	t.Helper()
	return testkit.Scalar[string](t, l.conn, `
select string_agg(coalesce(data->>'status', 'before_end'), ' ' order by seq)
from events where subject = $1 and type <> 'cloudfn.lease.changed.v1'`, id)
}

// TestInstanceLease: the instance is shelved until the start, active at it, and shelved at the end, which is moved
// while it is active. Nothing of the trust is left.
func TestInstanceLease(t *testing.T) {
	t.Parallel()
	l := newLessee(t, nil)
	instance, server := l.launch(t, "")
	start := time.Now().Add(time.Hour).UTC()
	lease := l.lease(t, fmt.Sprintf(`{"name": "nightly", "start": %q, "duration": "PT1H", "before_end": "PT30M",
		"reservations": [{"type": "instance", "instance_id": %q}]}`, start.Format(time.RFC3339), instance))
	l.Await(t, server, "SHELVED_OFFLOADED")
	if s := l.show(t, lease.ID); s.Status != "pending" {
		t.Errorf("before the start it is %s", s.Status)
	}
	l.at(t, lease.ID, "starts_at = clock_timestamp()")
	l.becomes(t, lease.ID, domain.LeaseActive)
	l.Await(t, server, "ACTIVE")
	if a := l.client().Get(t, "/v1/servers/"+server); !strings.Contains(string(a.Body), `"lease_id":"`+lease.ID+`"`) {
		t.Errorf("the server is %s", a.Body)
	}

	later := start.Add(2 * time.Hour).Format(time.RFC3339)
	extended := l.client().Do(t, http.MethodPatch, "/v1/leases/"+lease.ID, fmt.Sprintf(`{"end": %q}`, later),
		"Content-Type", "application/json")
	if extended.Status != http.StatusOK {
		t.Errorf("extend: %d %s", extended.Status, extended.Body)
	}
	l.at(t, lease.ID, "ends_at = clock_timestamp() + interval '20 seconds', before_end = interval '15 seconds'")
	l.becomes(t, lease.ID, domain.LeaseEnded)
	l.Await(t, server, "SHELVED_OFFLOADED")
	if got, want := l.events(t, lease.ID), "pending starting active before_end ending ended"; got != want {
		t.Errorf("its events are %q, want %q", got, want)
	}
	testkit.Eventually(t, 2*time.Minute, "the trusts are gone", func() bool {
		l.tick()
		return len(l.TrustsForAdmin(t)) == 0
	})
}
