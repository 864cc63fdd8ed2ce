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
		"LEASES_OS_CLOUD": "leases", "ALLOWED_PROJECTS": l.ID, "STATS_BACKFILL": "1h",
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
		VolumeID   string `json:"volume_id"`
		SnapshotID string `json:"snapshot_id"`
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
	testkit.Eventually(t, 2*time.Minute, "the trusts are deleted", func() bool {
		l.tick()
		return len(l.TrustsForAdmin(t)) == 0
	})
}

// TestLongVolumesFollowLease: a server with a volume goes through a lease: shelved, unshelved, shelved. Nova keeps the
// attachment all the while, and Cinder keeps the volume for it.
func TestLongVolumesFollowLease(t *testing.T) {
	t.Parallel()
	l := newLessee(t, nil)
	instance, server := l.launch(t, "")
	volume := l.AttachVolume(t, server)
	is := func(when, status string) {
		t.Helper()
		if got, isAttached := l.Attached(t, volume, server); got != status || !isAttached {
			t.Errorf("%s the volume is %s in Cinder, and attached in Nova: %v; want %s", when, got, isAttached, status)
		}
	}
	lease := l.lease(t, fmt.Sprintf(`{"name": "with data", "start": %q, "duration": "PT1H",
		"reservations": [{"type": "instance", "instance_id": %q}]}`,
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339), instance))
	l.Await(t, server, "SHELVED_OFFLOADED")
	is("before the start", "reserved")
	l.at(t, lease.ID, "starts_at = clock_timestamp()")
	l.becomes(t, lease.ID, domain.LeaseActive)
	l.Await(t, server, "ACTIVE")
	is("during the lease", "in-use")
	l.at(t, lease.ID, "ends_at = clock_timestamp()")
	l.becomes(t, lease.ID, domain.LeaseEnded)
	l.Await(t, server, "SHELVED_OFFLOADED")
	is("after the end", "reserved")
	testkit.Eventually(t, time.Minute, "it starts again", func() bool {
		return l.client().Post(t, "/v1/servers/"+instance+"/actions", `{"action": "start"}`).Status < 300
	})
	l.Await(t, server, "ACTIVE")
	is("when it is started again", "in-use")
}

// TestLongLeaseOfVolumes: a lease makes a volume and takes another one. Both are attached while its instance runs. When
// that is shelved, they are detached, and the one is kept with a snapshot, the other deleted.
func TestLongLeaseOfVolumes(t *testing.T) {
	t.Parallel()
	l := newLessee(t, nil)
	t.Cleanup(func() { l.DeleteVolumes(t) })
	instance, server := l.launch(t, "")
	var existing struct{ ID string }
	l.client().Post(t, "/v1/volumes", `{"name": "existing", "size_gb": 1}`).JSON(t, &existing)
	lease := l.lease(t, fmt.Sprintf(`{"name": "with data", "duration": "PT1H", "reservations": [
		{"type": "instance", "instance_id": %q}, {"type": "volume", "size_gb": 1, "on_end": "snapshot"},
		{"type": "volume", "volume_id": %q, "on_end": "delete"}]}`, instance, existing.ID))
	lease = l.becomes(t, lease.ID, domain.LeaseActive)
	made := lease.Reservations[1].VolumeID
	for _, id := range []string{made, existing.ID} {
		if status, isAttached := l.Attached(t, id, server); status != "in-use" || !isAttached {
			t.Errorf("during the lease the volume %s is %s, and attached: %t", id, status, isAttached)
		}
	}
	l.at(t, lease.ID, "ends_at = clock_timestamp()")
	lease = l.becomes(t, lease.ID, domain.LeaseEnded)
	l.Await(t, server, "SHELVED_OFFLOADED")
	if status, isAttached := l.Attached(t, made, server); status != "available" || isAttached {
		t.Errorf("after the end the volume is %s, and attached: %t", status, isAttached)
	}
	if lease.Reservations[1].SnapshotID == "" {
		t.Errorf("no snapshot: got %+v", lease)
	}
	a := l.client().Do(t, http.MethodDelete, "/v1/volumes/"+made, "")
	if a.Status < 400 || !strings.Contains(string(a.Body), "snapshot") {
		t.Errorf("the volume has no snapshot: got %d %s", a.Status, a.Body)
	}
	if a := l.client().Get(t, "/v1/volumes/"+existing.ID); a.Status != http.StatusNotFound {
		t.Errorf("the other volume: got %d %s", a.Status, a.Body)
	}
}

// TestLongLeasesOfLaunches goes to the end with leases that the service account handles: that of a server that was made
// in Nova, and the default one of a caller whose token can make no trust. A launch with a lease in the future is
// shelved until it starts.
func TestLongLeasesOfLaunches(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	l := newLessee(t, map[string]string{"DEFAULT_LEASE": "P1M", "LEASES_ADOPT": "P1M"})
	ids, servers := map[string]string{}, map[string]string{"adopted": l.Create(t, "adopted")}
	leaseOf := func(server string) string {
		return testkit.Scalar[string](t, l.conn, `select coalesce(
			(select lease_id::text from instances where server_id = $1), '')`, server)
	}
	start := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	_, servers["later"] = l.launch(t, fmt.Sprintf(`, "lease": {"start": %q, "duration": "PT1H"}`, start))
	credential, secret := l.AppCredential(t)
	token := l.token
	l.token = l.AppCredentialToken(t, credential, secret)
	_, servers["default"] = l.launch(t, "")
	l.token = token

	l.Await(t, servers["later"], "SHELVED_OFFLOADED")
	if status := l.show(t, leaseOf(servers["later"])).Status; status != "pending" {
		t.Errorf("before its start the lease is %s", status)
	}
	// The next round is due, for a process that does not remember the last one.
	l.process.Terminate(t, time.Minute)
	if _, err := l.conn.Exec(t.Context(), "delete from jobs where key = 'adopt'"); err != nil {
		t.Fatal(err)
	}
	l.process = testkit.Spawn(t, l.env)
	testkit.Eventually(t, time.Minute, "the server is adopted", func() bool {
		l.tick()
		return leaseOf(servers["adopted"]) != ""
	})
	for name, server := range servers {
		ids[name] = leaseOf(server)
		hasTrust := testkit.Scalar[bool](t, l.conn, "select connection_id is not null from leases where id = $1", ids[name])
		if hasTrust != (name == "later") {
			t.Errorf("%s: with a trust: %v", name, hasTrust)
		}
	}
	l.at(t, ids["later"], "starts_at = clock_timestamp()")
	for name, id := range ids {
		l.becomes(t, id, domain.LeaseActive)
		l.Await(t, servers[name], "ACTIVE")
		l.at(t, id, "ends_at = clock_timestamp()")
	}
	for name, id := range ids {
		l.becomes(t, id, domain.LeaseEnded)
		l.Await(t, servers[name], "SHELVED_OFFLOADED")
		if got, want := l.events(t, id), "pending starting active ending ended"; got != want {
			t.Errorf("%s: its events are %q, want %q", name, got, want)
		}
	}
}

// TestLongLeaseWithoutRoom: an instance that Nova finds no host for is requested again, until its lease is in error.
// Its end comes nevertheless.
func TestLongLeaseWithoutRoom(t *testing.T) {
	t.Parallel()
	l := newLessee(t, map[string]string{"LEASES_RETRY_FOR": "10s"}) // three attempts: their pauses are 5, 10 and 20 s
	instance, server := l.launch(t, "")
	lease := l.lease(t, fmt.Sprintf(`{"name": "no room", "start": %q, "duration": "PT1H", "on_end": "delete",
		"reservations": [{"type": "instance", "instance_id": %q}]}`,
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339), instance))
	l.Await(t, server, "SHELVED_OFFLOADED")
	// As if each host had become too small since.
	testkit.NovaSQL(t, `update nova_api.request_specs set spec = regexp_replace(spec,
		'"memory_mb": [0-9]+', '"memory_mb": 999999999') where instance_uuid = '`+server+`'`)
	l.at(t, lease.ID, "starts_at = clock_timestamp()")
	failed := l.becomes(t, lease.ID, domain.LeaseError)
	if failed.Reason == nil || !strings.Contains(failed.Reason.Detail, "no host") {
		t.Errorf("its reason is %+v", failed.Reason)
	}
	if n := testkit.Scalar[int](t, l.conn, "select count(*)::int from actions where verb = 'start'"); n < 2 {
		t.Errorf("it was tried %d times", n)
	}
	l.at(t, lease.ID, "ends_at = clock_timestamp()")
	l.becomes(t, lease.ID, domain.LeaseEnded)
	l.Await(t, server, "DELETED")
	if got, want := l.events(t, lease.ID), "pending starting error ending ended"; got != want {
		t.Errorf("its events are %q, want %q", got, want)
	}
}
