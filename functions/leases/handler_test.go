package leases

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fixture is the function with its database and the owner of its leases.
type fixture struct {
	*testkit.Client
	conn    *pgx.Conn
	project *testkit.Project
	server  *testkit.Client // without a token

	database string
}

// start starts the function for a project of its own, with more of its environment.
func start(t *testing.T, more map[string]string) fixture {
	t.Helper()
	project := testkit.BorrowProject(t)
	return startFor(t, project, project.Token(t), more)
}

// startFor starts the function for a project, with a database of its own.
func startFor(t *testing.T, project *testkit.Project, token string, more map[string]string) fixture {
	t.Helper()
	database := testkit.Database(t)
	server := testkit.Start(t, testkit.Env(t, database, more), Function)
	return fixture{server.As(token), testkit.Connect(t, database), project, server, database}
}

// exec changes rows as the other functions do.
func (f fixture) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := f.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// instance makes an instance of a project, of this state.
func (f fixture) instance(t *testing.T, projectID, state string) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	f.exec(t, `insert into instances (project_id, id, name, server_id, state, origin, spec, seq, position)
		values ($1, $2, 'vm', $3, $4, 'connected', '{}', 1, 0)`, projectID, id, uuid.NewString(), state)
	return id
}

// hosts makes so many equal reservable hosts, which fit the sandbox's flavor.
func (f fixture) hosts(t *testing.T, count int) {
	t.Helper()
	f.exec(t, `insert into nodes (name, zone, pool, vcpus, ram_mb, disk_gb, traits, attributes)
		select 'n' || to_char(n, 'FM000'), 'nova', 'reservable', 32, 65536, 1000,
		       '{HW_CPU_X86_AVX2}', '{"hypervisor_type": "QEMU"}'
		from generate_series((select count(*) from nodes) + 1, (select count(*) from nodes) + $1::int) n`, count)
}

// make creates a lease.
func (f fixture) make(t *testing.T, body string) (made Lease) {
	t.Helper()
	a := f.Post(t, "/v1/leases", body)
	if a.Status != http.StatusCreated {
		t.Fatalf("%s: got %d %s", body, a.Status, a.Body)
	}
	a.JSON(t, &made)
	if a.Header.Get("Location") != "/v1/leases/"+made.ID.String() || a.Header.Get("ETag") == "" {
		t.Errorf("got the headers %v", a.Header)
	}
	return made
}

// patch changes a lease.
func patch(t *testing.T, c *testkit.Client, path, body string, header ...string) testkit.Answer {
	t.Helper()
	return c.Do(t, "PATCH", path, body, append(header, "Content-Type", "application/json")...)
}

// refused checks the status of an answer, and that it names the field. "" = none.
func refused(t *testing.T, a testkit.Answer, status int, field string) {
	t.Helper()
	if a.Status != status || field != "" && !testkit.Names(t, a, field) {
		t.Errorf("got %d %s, want %d with %q in errors", a.Status, a.Body, status, field)
	}
}

// in is a time from now, in the form of requests.
func in(d time.Duration) string {
	return time.Now().Add(d).UTC().Truncate(time.Second).Format(time.RFC3339)
}

// ofInstance is the body of a lease of an instance, which begins in an hour and takes two.
func ofInstance(id uuid.UUID, more string) string {
	return fmt.Sprintf(`{"name": "workshop", "start": %q, "duration": "PT2H"%s,
		"reservations": [{"type": "instance", "instance_id": %q}]}`, in(time.Hour), more, id)
}

// ofHosts is the body of a lease of hosts.
func ofHosts(start, duration, hosts string) string {
	return fmt.Sprintf(`{"name": "hosts", "start": %q, "duration": %q, "reservations": [{"type": "host"%s}]}`, start,
		duration, hosts)
}

// TestLeaseOfInstance creates a lease of an instance with its trust, shows, lists, changes and ends it. Another project
// sees none of it.
func TestLeaseOfInstance(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	id := f.instance(t, f.project.ID, "active")
	made := f.make(t, ofInstance(id, `, "before_end": "PT30M", "on_end": "stop"`))
	if made.Status != domain.LeasePending || made.BeforeEnd != "PT30M" || made.OnEnd != "stop" ||
		made.UserID != f.project.UserID || made.End.Sub(made.Start) != 2*time.Hour || len(made.Events) != 3 ||
		!made.Events[1].DueAt.Equal(made.End.Add(-30*time.Minute)) || made.Reservations[0].InstanceID != id {
		t.Errorf("made %+v", made)
	}
	if n := len(f.project.Trusts(t)); n != 1 {
		t.Errorf("Keystone has %d trusts", n)
	}
	connection := testkit.Scalar[string](t, f.conn, `select concat_ws(' ', kind, name, actions, acts_as->'roles',
		expires_at - $2::timestamptz, lease_id = $1) from connections`, made.ID, made.End)
	if connection != `trust lease workshop {start,stop,shelve} ["member"] 1 day t` {
		t.Errorf("its connection is %s", connection)
	}
	path := "/v1/leases/" + made.ID.String()
	second := f.make(t, ofInstance(f.instance(t, f.project.ID, "stopped"), ""))
	var names []string
	for next := "/v1/leases?limit=1&status=pending&name=WORK&type=instance"; next != ""; {
		var page LeasePage
		f.Get(t, next).JSON(t, &page)
		for _, item := range page.Items {
			names = append(names, item.ID.String())
		}
		if next = ""; page.Next != nil {
			next = *page.Next
		}
	}
	if strings.Join(names, " ") != second.ID.String()+" "+made.ID.String() {
		t.Errorf("listed %v", names)
	}
	var none LeasePage
	if f.Get(t, "/v1/leases?status=ended,error").JSON(t, &none); len(none.Items) != 0 {
		t.Errorf("listed %v", none)
	}
	stranger := f.server.As(testkit.BorrowProject(t).Token(t))
	for _, method := range []string{"GET", "DELETE"} {
		refused(t, stranger.Do(t, method, path, ""), http.StatusNotFound, "")
	}
	refused(t, patch(t, stranger, path, `{"name": "mine"}`), http.StatusNotFound, "")
	refused(t, stranger.Post(t, path+"/retry", ""), http.StatusNotFound, "")
	refused(t, stranger.Post(t, "/v1/leases", ofInstance(id, "")), http.StatusBadRequest, "reservations[0].instance_id")

	refused(t, patch(t, f.Client, path, `{"name": "x"}`, "If-Match", `"99"`), http.StatusPreconditionFailed, "")
	var enforced Lease
	if patch(t, f.Client, path, `{"enforce": true}`).JSON(t, &enforced); made.Enforce || !enforced.Enforce {
		t.Errorf("with enforce: %+v", enforced)
	}
	var extended Lease
	tag := f.Get(t, path).Header.Get("ETag")
	a := patch(t, f.Client, path, `{"duration": "PT4H", "before_end": null}`, "If-Match", tag)
	if a.JSON(t, &extended); a.Status != http.StatusOK || extended.End.Sub(made.Start) != 4*time.Hour ||
		extended.BeforeEnd != "" || a.Header.Get("ETag") == `"1"` {
		t.Errorf("extended: %d %s", a.Status, a.Body)
	}
	connections := testkit.Scalar[string](t, f.conn, `select string_agg(concat_ws(' ', status,
		expires_at - $2::timestamptz), ', ' order by created_at) from connections where lease_id = $1`, made.ID,
		extended.End)
	if connections != "deleted 22:00:00, active 1 day" {
		t.Errorf("its connections are %s", connections)
	}
	if a := f.Do(t, "DELETE", path, ""); a.Status != http.StatusAccepted && a.Status != http.StatusOK {
		t.Errorf("ended: %d %s", a.Status, a.Body)
	}
}

// TestDryRun stores nothing and delegates nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.hosts(t, 1)
	body := ofHosts(in(time.Hour), "PT1H", "")
	if a := f.Post(t, "/v1/leases?dry_run=true", body); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, f.conn, `select ((select count(*) from leases) + (select count(*) from connections)
		+ (select count(*) from trusts_to_revoke) + (select count(*) from events))::int`); n != 0 ||
		len(f.project.Trusts(t)) != 0 {
		t.Errorf("%d rows and the trusts %v", n, f.project.Trusts(t))
	}
}

// TestChangesAreLimited as far as they make no trust: each writes an event, and a delivery for each of up to 100
// callbacks. So are dry runs and searches for free hosts, which may read the times of all hosts.
func TestChangesAreLimited(t *testing.T) {
	t.Parallel()
	f := start(t, map[string]string{"CHANGE_RATE_LIMIT": "3"})
	f.hosts(t, 2)
	hosts := ofHosts(in(time.Hour), "PT2H", "")
	path := "/v1/leases/" + f.make(t, hosts).ID.String()
	for n, tc := range []struct {
		status int
		name   string
	}{{200, "a"}, {200, "a"}, {200, "b"}, {429, "a"}, {200, "b"}} {
		if a := patch(t, f.Client, path, fmt.Sprintf(`{"name": %q}`, tc.name)); a.Status != tc.status {
			t.Errorf("change %d: got %d %.200s, want %d", n, a.Status, a.Body, tc.status)
		}
	}
	refused(t, f.Post(t, "/v1/leases", hosts), http.StatusTooManyRequests, "")
	refused(t, f.Post(t, "/v1/leases?dry_run=true", hosts), http.StatusTooManyRequests, "")
	refused(t, f.Get(t, "/v1/leases/availability?duration=PT1H"), http.StatusTooManyRequests, "")
	made := f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
	f.exec(t, "update leases set status = 'error', start_result = 'failed' where id = $1", made.ID)
	refused(t, f.Post(t, "/v1/leases/"+made.ID.String()+"/retry", ""), http.StatusTooManyRequests, "")
}

// TestHostsOfEnded: an ended reservation shows how many hosts it had.
func TestHostsOfEnded(t *testing.T) {
	t.Parallel()
	at := time.Now()
	r := domain.Reservation{Status: domain.ReservationEnded, Request: &domain.HostRequest{Min: 2}}
	r.Allocations = []domain.Allocation{
		{Node: "a", ReleasedAt: at}, {Node: "b", ReleasedAt: at}, {Node: "c", ReplacedAt: at, ReleasedAt: at},
	}
	if got := showReservation(r); *got.Hosts != 2 {
		t.Errorf("it had %d hosts", *got.Hosts)
	}
}

// TestWaysOutOfAnEnd: a lease whose end does not get done is retried, gets another on_end, and is released by an admin,
// while it is ending and when its end has failed.
func TestWaysOutOfAnEnd(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	admin := f.server.As(testkit.Token(t, "admin"))
	f.hosts(t, 1)
	made := f.make(t, ofHosts("now", "PT1H", ""))
	f.begin(t, made)
	lease := func(what string, a testkit.Answer, want int, status domain.LeaseStatus, onEnd domain.OnEnd) {
		t.Helper()
		var got Lease
		if a.Status == want {
			a.JSON(t, &got)
		}
		if a.Status != want || got.Status != status || got.OnEnd != onEnd {
			t.Errorf("%s: got %d %s", what, a.Status, a.Body)
		}
	}
	refused(t, f.Post(t, path(made)+"/retry", ""), http.StatusConflict, "")
	lease("delete", f.Do(t, "DELETE", path(made), ""), http.StatusAccepted, domain.LeaseEnding, domain.OnEndShelve)
	for _, status := range []domain.LeaseStatus{domain.LeaseEnding, domain.LeaseError} {
		fail := func() {
			if status == domain.LeaseError {
				f.exec(t, "update leases set status = 'error', end_result = 'failed'")
			}
		}
		fail()
		lease("change", patch(t, f.Client, path(made), `{"on_end": "snapshot_delete"}`), http.StatusOK, status,
			domain.OnEndSnapshotDelete)
		refused(t, patch(t, f.Client, path(made), `{"on_end": "stop"}`), http.StatusBadRequest, "on_end")
		refused(t, patch(t, f.Client, path(made), `{"on_end": "delete", "name": "x"}`), http.StatusConflict, "")
		refused(t, patch(t, f.Client, path(made), `{"duration": "P1D"}`), http.StatusConflict, "")
		lease("retry", f.Post(t, path(made)+"/retry", ""), http.StatusAccepted, domain.LeaseEnding,
			domain.OnEndSnapshotDelete)
		fail()
		refused(t, f.Do(t, "DELETE", path(made)+"?on_end=none", ""), http.StatusBadRequest, "on_end")
		lease("delete with another on_end", f.Do(t, "DELETE", path(made)+"?on_end=delete", ""), http.StatusAccepted,
			domain.LeaseEnding, domain.OnEndDelete)
	}
	refused(t, f.Post(t, path(made)+"/release", ""), http.StatusForbidden, "")
	refused(t, admin.Post(t, "/v1/leases/"+uuid.NewString()+"/release", ""), http.StatusNotFound, "")
	released := admin.Post(t, path(made)+"/release", "")
	lease("release", released, http.StatusAccepted, domain.LeaseEnding, domain.OnEndNone)
}

// TestHeal: what happens when a host fails can be chosen and changed, with an event; a dry run shows it.
func TestHeal(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.hosts(t, 3)
	two := `, "heal": "manual"}, {"type": "host", "max": 2`
	var dry Lease
	f.Post(t, "/v1/leases?dry_run=true", ofHosts("now", "PT2H", two)).JSON(t, &dry)
	made := f.make(t, ofHosts("now", "PT2H", two))
	f.begin(t, made)
	shown := func(l Lease) string {
		var heals []string
		for _, r := range l.Reservations {
			heals = append(heals, string(r.Heal))
		}
		return strings.Join(heals, " ")
	}
	if a, b := shown(dry), shown(made); a != "manual auto" || a != b {
		t.Errorf("the dry run has %s, the lease %s", a, b)
	}
	for _, heal := range []string{"auto", "auto", "manual"} {
		if got := shown(f.changes(t, made, `{"heal": "`+heal+`"}`)); got != heal+" "+heal {
			t.Errorf("with %s it is %s", heal, got)
		}
	}
	for body, field := range map[string]string{`{"heal": "never"}`: "heal", `{"heal": null}`: "heal"} {
		refused(t, patch(t, f.Client, path(made), body), http.StatusBadRequest, field)
	}
	other := f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
	refused(t, patch(t, f.Client, path(other), `{"heal": "auto"}`), http.StatusBadRequest, "heal")
	if got := testkit.Scalar[string](t, f.conn, `select string_agg(data->>'fields', ' ' order by seq) from events
		where subject = $1::text and type = 'cloudfn.lease.changed.v1'`, made.ID); got != `["heal"] ["heal"]` {
		t.Errorf("the events name %s", got)
	}
}
