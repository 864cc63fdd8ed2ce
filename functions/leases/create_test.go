package leases

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// connection makes a connection of a project with a trust, which permits these actions for a day.
func (f fixture) connection(t *testing.T, projectID, actions string) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	f.exec(t, `insert into connections (id, project_id, domain_id, user_id, name, kind, delegation_id, acts_as, actions,
			quota, usable_by, flavors, status, expires_at, seq, revoked)
		values ($1, $2, 'd', $3, 'c', 'trust', $4, '{}', $5::text::text[], '{}', array[$6], '[]', 'active',
			now() + interval '1 day', 1, false)`,
		id, projectID, f.project.UserID, uuid.NewString(), actions, f.project.ID)
	return id
}

// TestLeaseWithID: the same request is stored once, another one with the id is a conflict, and nothing of it is left.
func TestLeaseWithID(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	id := uuid.New()
	body := ofInstance(f.instance(t, f.project.ID, "active"), fmt.Sprintf(`, "id": %q`, id))
	if made := f.make(t, body); made.ID != id {
		t.Errorf("made %+v", made)
	}
	for _, same := range []string{body, strings.Replace(body, id.String(), strings.ToUpper(id.String()), 1)} {
		var stored Lease
		a := f.Post(t, "/v1/leases", same)
		if a.JSON(t, &stored); a.Status != http.StatusOK || stored.ID != id || a.Header.Get("ETag") != `"1"` {
			t.Errorf("the same request: %d %s", a.Status, a.Body)
		}
	}
	other := strings.Replace(body, "PT2H", "PT3H", 1)
	if a := f.Post(t, "/v1/leases", other); a.Status != http.StatusConflict || !contains(a.Body, id.String()) {
		t.Errorf("another request: %d %s", a.Status, a.Body)
	}
	taken := f.instance(t, f.project.ID, "active")
	refused(t, f.Post(t, "/v1/leases", ofInstance(taken, fmt.Sprintf(`, "id": %q`, taken))), http.StatusConflict, "id")
	rows := testkit.Scalar[int](t, f.conn, "select count(*)::int from leases")
	if n := len(f.project.Trusts(t)); n != 1 || rows != 1 {
		t.Errorf("%d trusts and %d leases", n, rows)
	}
}

// TestLeaseAfterUnshelve: what Nova shows of an instance when the lease is made decides what is done before its start,
// and not what was polled before its owner has unshelved it.
func TestLeaseAfterUnshelve(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	instance := f.instance(t, f.project.ID, "shelved")
	f.exec(t, "update instances set raw_status = 'SHELVED_OFFLOADED', server_id = $1",
		f.project.Boot(t, "leased", 1)[0].ID)
	state := func() string { return testkit.Scalar[string](t, f.conn, "select state from instances") }
	dry := f.Post(t, "/v1/leases?dry_run=true", ofInstance(instance, ""))
	if dry.Status != http.StatusOK || state() != "shelved" {
		t.Errorf("a dry run: got %d %s, stored is %s", dry.Status, dry.Body, state())
	}
	f.make(t, ofInstance(instance, ""))
	if state() != "active" {
		t.Errorf("stored is %s", state())
	}
}

// TestLeaseOfServer connects the server in the transaction of the lease, which a dry run rolls back.
func TestLeaseOfServer(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := f.project.Boot(t, "made-in-nova", 1)[0].ID
	body := fmt.Sprintf(`{"name": "x", "start": %q, "duration": "PT2H",
		"reservations": [{"type": "instance", "server_id": %q}]}`, in(time.Hour), server)
	if a := f.Post(t, "/v1/leases?dry_run=true", body); a.Status != http.StatusOK {
		t.Errorf("dry run: %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, f.conn, "select count(*)::int from instances"); n != 0 {
		t.Errorf("the dry run stored %d instances", n)
	}
	made := f.make(t, body)
	stored := testkit.Scalar[string](t, f.conn, `select concat_ws(' ', id, server_id, state, origin, lease_id)
		from instances`)
	want := fmt.Sprintf("%s %s active connected %s", made.Reservations[0].InstanceID, server, made.ID)
	if stored != want {
		t.Errorf("stored is %s, want %s", stored, want)
	}
	for body, field := range map[string]string{
		`"server_id": "` + server + `", "instance_id": "` + server + `"`: "reservations[0].server_id",
		`"name": "x"`: "reservations[0].name",
	} {
		refused(t, f.Post(t, "/v1/leases", `{"name": "x", "duration": "P1D", "reservations": [{"type": "instance", `+
			body+`}]}`), http.StatusBadRequest, field)
	}
	unknown := strings.Replace(body, server, uuid.NewString(), 1)
	refused(t, f.Post(t, "/v1/leases", unknown), http.StatusBadRequest, "reservations[0].server_id")
	stranger := f.server.As(testkit.BorrowProject(t).Token(t))
	refused(t, stranger.Post(t, "/v1/leases", body), http.StatusBadRequest, "reservations[0].server_id")
}

// TestLeaseByConnection: a connection that the request names has to permit what the lease needs, for as long as it
// lasts, and outlives the lease. No trust is made.
func TestLeaseByConnection(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	c := f.connection(t, f.project.ID, "{start,stop,shelve}")
	id := f.instance(t, f.project.ID, "active")
	named := func(connection uuid.UUID, more string) string {
		return ofInstance(id, fmt.Sprintf(`, "connection_id": %q%s`, connection, more))
	}
	refused(t, f.Post(t, "/v1/leases", named(c, "")), http.StatusBadRequest, "reservations[0].instance_id")
	f.exec(t, "update instances set connection_id = $1", c)
	for _, absent := range []uuid.UUID{uuid.New(), f.connection(t, "another", "{start,stop,shelve}")} {
		refused(t, f.Post(t, "/v1/leases", named(absent, "")), http.StatusBadRequest, "connection_id")
	}
	for onEnd, missing := range map[string]string{
		"shelve": "start, stop, shelve", "delete": "start, stop, shelve, snapshot, deallocate",
	} {
		a := f.Post(t, "/v1/leases", named(f.connection(t, f.project.ID, "{reboot}"),
			fmt.Sprintf(`, "on_end": %q`, onEnd)))
		if a.Status != http.StatusForbidden || !contains(a.Body, "does not permit to "+missing+", only to reboot") {
			t.Errorf("%s without the actions: %d %s", onEnd, a.Status, a.Body)
		}
	}
	long := strings.Replace(named(c, ""), "PT2H", "P2D", 1)
	refused(t, f.Post(t, "/v1/leases", long), http.StatusConflict, "connection_id")
	refused(t, f.Post(t, "/v1/leases", fmt.Sprintf(`{"name": "x", "duration": "P1D", "connection_id": %q,
		"reservations": [{"type": "host"}]}`, c)), http.StatusBadRequest, "connection_id")
	f.nothingLeased(t)

	made := f.make(t, named(c, ""))
	if made.ConnectionID != c || len(f.project.Trusts(t)) != 0 {
		t.Errorf("made %+v, and the trusts %v", made, f.project.Trusts(t))
	}
	f.begin(t, made)
	if got := f.changes(t, made, fmt.Sprintf(`{"end": %q}`, in(5*time.Hour))); got.ConnectionID != c {
		t.Errorf("extended %+v", got)
	}
	refused(t, patch(t, f.Client, path(made), fmt.Sprintf(`{"end": %q}`, in(48*time.Hour))), http.StatusConflict,
		"connection_id")
	if a := patch(t, f.Client, path(made), `{"on_end": "delete"}`); a.Status != http.StatusForbidden {
		t.Errorf("on_end without the action: %d %s", a.Status, a.Body)
	}
	cancelled := f.make(t, strings.Replace(named(c, ""), in(time.Hour)[:13], in(9 * time.Hour)[:13], 1))
	if a := f.Do(t, "DELETE", path(cancelled), ""); a.Status != http.StatusOK {
		t.Errorf("cancelled: %d %s", a.Status, a.Body)
	}
	status := testkit.Scalar[string](t, f.conn, "select status from connections where id = $1", c)
	if status != "active" {
		t.Errorf("after a lease the connection is %s", status)
	}
}

// nothingLeased checks that no lease is stored.
func (f fixture) nothingLeased(t *testing.T) {
	t.Helper()
	if n := testkit.Scalar[int](t, f.conn, "select count(*)::int from leases"); n != 0 {
		t.Errorf("%d leases are stored", n)
	}
}

// TestPeriodsOfInstance: leases of an instance follow each other. One that overlaps is refused with the lease in its
// way and the first time that is free.
func TestPeriodsOfInstance(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	id := f.instance(t, f.project.ID, "active")
	at := func(start time.Time, duration string) string {
		return fmt.Sprintf(`{"name": "x", "start": %q, "duration": %q, "reservations": [{"type": "instance",
			"instance_id": %q}]}`, start.Format(time.RFC3339), duration, id)
	}
	base := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	first := f.make(t, at(base, "PT2H"))
	third := f.make(t, at(base.Add(3*time.Hour), "PT2H"))
	a := f.Post(t, "/v1/leases", at(base.Add(time.Hour), "PT90M"))
	refused(t, a, http.StatusConflict, "reservations[0].instance_id")
	free := base.Add(5 * time.Hour).Format(time.RFC3339Nano)
	if got := allowed(t, a, "start"); len(got) != 1 || got[0] != free || !contains(a.Body, first.ID.String()) {
		t.Errorf("free from %v, want %s: %s", got, free, a.Body)
	}
	second := f.make(t, at(base.Add(2*time.Hour), "PT1H"))
	lease := func() string {
		return testkit.Scalar[string](t, f.conn, "select coalesce(lease_id::text, '') from instances")
	}
	if lease() != first.ID.String() {
		t.Errorf("the instance is in lease %s", lease())
	}
	refused(t, patch(t, f.Client, path(second), `{"duration": "PT90M"}`), http.StatusConflict,
		"reservations[0].instance_id")
	f.begin(t, first)
	a = patch(t, f.Client, path(first), `{"duration": "PT9H"}`)
	refused(t, a, http.StatusConflict, "duration")
	if !contains(a.Body, second.ID.String()) {
		t.Errorf("the answer does not name the lease: %s", a.Body)
	}
	for _, pending := range []Lease{second, third} {
		if a := f.Do(t, "DELETE", path(pending), ""); a.Status != http.StatusOK {
			t.Errorf("cancelled: %d %s", a.Status, a.Body)
		}
	}
	f.changes(t, first, `{"duration": "PT9H"}`)
	if shown := f.Get(t, path(first)); shown.Status != http.StatusOK || lease() != first.ID.String() {
		t.Errorf("the instance is in lease %s", lease())
	}
}

// TestChangeEvents: each change is an event that names the fields, with the instances. A change to nothing has none.
func TestChangeEvents(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	id := f.instance(t, f.project.ID, "active")
	made := f.make(t, ofInstance(id, `, "before_end": "PT0S"`))
	f.changes(t, made, `{"name": "seminar", "before_end": "PT5M"}`)
	f.changes(t, made, `{"name": "seminar"}`)
	f.changes(t, made, `{"duration": "PT3H"}`)
	f.Do(t, "DELETE", path(made), "")
	events := testkit.Scalar[string](t, f.conn, `select string_agg(concat_ws(' ', seq, type, data->>'fields',
		data->'instance_ids'->>0 = $2::text, data->'actor'->>'user_id' is not null), ', ' order by seq)
		from events where subject = $1::text`, made.ID, id)
	if want := `1 cloudfn.lease.state.v1 t t, 2 cloudfn.lease.changed.v1 ["before_end", "name"] t t, ` +
		`3 cloudfn.lease.changed.v1 ["end"] t t, 4 cloudfn.lease.state.v1 t t`; events != want {
		t.Errorf("the events are %s, want %s", events, want)
	}
}

// TestListByInstance lists the leases of one instance.
func TestListByInstance(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	id := f.instance(t, f.project.ID, "active")
	made := f.make(t, ofInstance(id, ""))
	f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
	var page LeasePage
	f.Get(t, "/v1/leases?instance_id="+id.String()).JSON(t, &page)
	if len(page.Items) != 1 || page.Items[0].ID != made.ID {
		t.Errorf("listed %+v", page)
	}
	if f.Get(t, "/v1/leases?instance_id="+uuid.NewString()).JSON(t, &page); len(page.Items) != 0 {
		t.Errorf("listed %+v", page)
	}
}

// TestStepsThatFail show when they failed, how often, and when they are tried again.
func TestStepsThatFail(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	made := f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
	for change, want := range map[string]string{
		"status = 'starting'": "pending at -, 3 attempts, again; pending at -, 0 attempts",
		"status = 'error', start_result = 'failed', started_at = now()": "failed at +, 3 attempts, again; " +
			"pending at -, 0 attempts",
		"status = 'ending', start_result = 'done', started_at = now()": "done at +, 0 attempts; " +
			"pending at -, 3 attempts, again",
		"status = 'error', end_result = 'failed', ended_at = now(), due_at = null": "pending at -, 0 attempts; " +
			"failed at +, 3 attempts",
	} {
		f.exec(t, `update leases set attempts = 3, due_at = now() + interval '1 minute', start_result = '',
			started_at = null, end_result = '', ended_at = null`)
		f.exec(t, "update leases set "+change)
		var shown Lease
		f.Get(t, path(made)).JSON(t, &shown)
		var got []string
		for _, e := range shown.Events {
			if e.Type != "before_end" {
				at, again := "-", ""
				if !e.At.IsZero() {
					at = "+"
				}
				if !e.RetryAt.IsZero() {
					again = ", again"
				}
				got = append(got, fmt.Sprintf("%s at %s, %d attempts%s", e.Status, at, e.Attempts, again))
			}
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%s: %s, want %s", change, text, want)
		}
	}
}

// TestDryRunTellsAll: a dry run names everything that would fail, also what Nova says of a server.
func TestDryRunTellsAll(t *testing.T) {
	t.Parallel()
	f := start(t, map[string]string{"LEASES_LONGEST": "1h", "TRUSTEE_USER_ID": ""})
	dry := func(body string) testkit.Answer { return f.Post(t, "/v1/leases?dry_run=true", body) }
	a := dry(ofInstance(f.instance(t, f.project.ID, "active"), ""))
	for _, field := range []string{"duration", "X-Auth-Token", "reservations[0].instance_id"} {
		refused(t, a, http.StatusBadRequest, field)
	}
	f = start(t, nil)
	id := f.instance(t, f.project.ID, "active") // its server is not in Nova
	refused(t, dry(ofInstance(id, "")), http.StatusBadRequest, "reservations[0].instance_id")
	f.exec(t, "update instances set server_id = $1", f.project.Boot(t, "leased", 1)[0].ID)
	if a := dry(ofInstance(id, "")); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	f.nothing(t)
}

// TestExplain: a refusal has the first free time once, in whole seconds, and says that a start is in the past.
func TestExplain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 999_000, time.UTC)
	free := &domain.FreeError{
		Refusal: apperr.InvalidField("reservations[0].min", "is busy"),
		FreeAt:  now.Add(time.Hour), FreeEnd: now.Add(2 * time.Hour),
	}
	for _, c := range []struct {
		start    time.Time // of the request
		duration string
		want     string
	}{
		{time.Time{}, "PT1H", "start: is too early: what is reserved is free from 2026-01-02T04:04:06Z"},
		{now.Add(time.Minute), "PT1H", "start: is too early: what is reserved is free from 2026-01-02T04:04:06Z"},
		{now.AddDate(-6, 0, 0), "PT1H", "start: is in the past, and the lease would begin now: what is reserved is " +
			"free from 2026-01-02T04:04:06Z"},
		{time.Time{}, "", "start: is too early: what is reserved is free from 2026-01-02T04:04:06Z; " +
			"end: is 2026-01-02T05:04:06Z for as long from then"},
	} {
		terms := domain.LeaseTerms{Start: c.start, End: now.Add(time.Hour)}
		if c.duration != "" {
			terms.Duration = period(t, c.duration)
		}
		lease := domain.Lease{}
		if err := terms.Apply(&lease, domain.LeaseRules{}, now); err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, f := range apperr.As(explain(free, terms, lease.StartsAt)).Fields[1:] {
			texts = append(texts, f.Field+": "+f.Detail)
		}
		if got := strings.Join(texts, "; "); got != c.want {
			t.Errorf("from %s: got %s", c.start, got)
		}
	}
}

func period(t *testing.T, text string) domain.Period {
	t.Helper()
	p, err := domain.ParsePeriod(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestKeyedLease: with an Idempotency-Key a lease that is sent again is the same one, whenever its replica died, and
// its instance is leased once.
func TestKeyedLease(t *testing.T) {
	t.Parallel()
	woken := testkit.NewWakes(t)
	f := start(t, map[string]string{"WAKE_URL": woken.URL})
	body, key := ofInstance(f.instance(t, f.project.ID, "active"), ""), uuid.NewString()
	once := func(when string, want int, isReplayed bool) (made struct{ ID uuid.UUID }) {
		t.Helper()
		a := f.Do(t, "POST", "/v1/leases", body, "Content-Type", "application/json", "Idempotency-Key", key)
		if a.JSON(t, &made); a.Status != want || (a.Header.Get("Idempotency-Replayed") != "") != isReplayed {
			t.Errorf("%s: got %d %s", when, a.Status, a.Body)
		}
		if n := testkit.Scalar[int](t, f.conn, "select count(*)::int from leases"); n != 1 {
			t.Errorf("%s: there are %d leases", when, n)
		}
		return made
	}
	var first struct{ ID uuid.UUID }
	woken.After(t, "run-leases", "a lease", func() { first = once("first", 201, false) })
	if again := once("stored", 201, true); again != first {
		t.Errorf("it made %s, and then %s", first.ID, again.ID)
	}
	testkit.LeaveRequests(t, f.conn, testkit.Died)
	woken.After(t, "run-leases", "a lease that is there", func() {
		if again := once("died when it was done", 200, false); again != first {
			t.Errorf("it made %s, and then %s", first.ID, again.ID)
		}
	})
	if trusts := f.project.Trusts(t); len(trusts) != 1 {
		t.Errorf("Keystone has the trusts %v", trusts)
	}
}
