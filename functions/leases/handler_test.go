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
	conn     *pgx.Conn
	project  *testkit.Project
	server   *testkit.Client // without a token
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
