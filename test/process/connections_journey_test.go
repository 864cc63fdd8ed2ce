package process_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDelegationJourney: by a trust and by an application credential a server is launched and no second, one action is
// permitted and another is not, and a stranger finds nothing. When the connection is deleted, no trust is left in
// Keystone.
func TestDelegationJourney(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	d := newDelegates(t)
	stranger := testkit.NewProject(t)
	d.tokens[stranger] = stranger.Token(t)
	id, secret := d.owner.AppCredential(t)
	connections := []string{
		d.delegated(t, d.owner, `"kind": "trust", "quota": {"instances": 1}`, time.Now().Add(time.Hour)),
		d.delegated(t, d.owner, fmt.Sprintf(`"kind": "application_credential", "id": %q, "secret": %q, "quota": {"instances": 1}`, id, secret), time.Now().Add(time.Hour)),
	}
	var orders []testkit.Answer
	for _, c := range connections {
		orders = append(orders, d.allocate(t, c, ""))
	}
	for n, c := range connections {
		order := d.allocated(t, c, orders[n])
		if order.Status != "done" || len(order.Instances) != 1 {
			t.Fatalf("the order is %+v", order)
		}
		refused(t, "a second server", d.allocate(t, c, ""), http.StatusForbidden, "quota_exceeded")
		if status := d.action(t, c, order.Instances[0].ID, `{"action": "stop"}`); status != "done" {
			t.Errorf("a permitted action is %s", status)
		}
		refused(t, "a reboot", d.at(d.actor, "servers").Post(t, "/v1/servers/"+order.Instances[0].ID+"/actions",
			fmt.Sprintf(`{"action": "reboot", "connection_id": %q}`, c)), http.StatusForbidden, "does not permit to reboot")
		d.absent(t, stranger, c, order.Instances[0].ID)
		for _, who := range []*testkit.Project{d.owner, d.actor} {
			if check := d.check(t, who, c); check.Works == nil || !*check.Works ||
				!slices.Contains(check.Roles, "member") || check.CheckedAt.IsZero() {
				t.Errorf("the check says %+v", check)
			}
		}
	}
	if n := len(d.owner.Servers(t)); n != 2 {
		t.Errorf("Nova has %d servers", n)
	}
	for _, c := range connections {
		if a := d.at(d.owner, "connections").Do(t, http.MethodDelete, "/v1/connections/"+c,
			""); a.Status != http.StatusNoContent {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		refused(t, "a check of what is deleted", d.at(d.actor, "connections").Post(t, "/v1/connections/"+c+"/check",
			""), http.StatusNotFound, "")
	}
	testkit.Eventually(t, time.Minute, "no trust is left in Keystone",
		func() bool { return len(d.owner.Trusts(t)) == 0 })
}

// delegated has someone delegate to the actor until a moment, and gives the connection's id.
func (d *delegates) delegated(t *testing.T, owner *testkit.Project, how string, until time.Time) (id string) {
	t.Helper()
	made := d.at(owner, "connections").Post(t, "/v1/connections", fmt.Sprintf(`{%s, "actions": ["allocate", "connect", "start", "stop"], "usable_by": [%q], "expires_at": %q}`,
		how, d.actor.UserID, until.UTC().Format(time.RFC3339Nano)))
	if made.Status != http.StatusCreated {
		t.Fatalf("%d %s", made.Status, made.Body)
	}
	var c struct{ ID string }
	made.JSON(t, &c)
	return c.ID
}

func refused(t *testing.T, what string, a testkit.Answer, status int, words string) {
	t.Helper()
	if a.Status != status || !strings.Contains(string(a.Body), words) {
		t.Errorf("%s: got %d %s, want %d with %q", what, a.Status, a.Body, status, words)
	}
}

// absent checks that someone finds neither the connection nor what runs through it.
func (d *delegates) absent(t *testing.T, who *testkit.Project, connection, instance string) {
	t.Helper()
	for what, a := range map[string]testkit.Answer{
		"the connection": d.at(who, "connections").Get(t, "/v1/connections/"+connection),
		"its check":      d.at(who, "connections").Post(t, "/v1/connections/"+connection+"/check", ""),
		"its servers":    d.at(who, "servers").Get(t, "/v1/servers?connection_id="+connection),
		"an instance":    d.at(who, "servers").Get(t, "/v1/servers/"+instance+"?connection_id="+connection),
		"its orders":     d.at(who, "launch").Get(t, "/v1/launch?connection_id="+connection),
	} {
		refused(t, what+" to a stranger", a, http.StatusNotFound, "not_found")
	}
}

type checked struct {
	Works     *bool
	Status    string
	Roles     []string
	CheckedAt time.Time `json:"checked_at"`
}

// check checks whether a connection works, until there is an answer.
func (d *delegates) check(t *testing.T, who *testkit.Project, connection string) (c checked) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "the check is answered", func() bool {
		a := d.at(who, "connections").Post(t, "/v1/connections/"+connection+"/check", "")
		if a.Status != http.StatusOK && a.Status != http.StatusAccepted {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		c = checked{}
		a.JSON(t, &c)
		return a.Status == http.StatusOK
	})
	return c
}

const (
	trust      = "trust"
	credential = "application_credential"
)

// delegation is one connection of TestLongDelegationsThatEnd.
type delegation struct {
	name, kind string
	owner      *testkit.Project
	want       string // status after its end in Keystone

	connection, inKeystone string          // their ids
	requested              *testkit.Answer // to the last action through it; nil = it is idle
}

// TestLongDelegationsThatEnd in Keystone, after their sessions were used: one event some minutes later finds all of
// them, and publishes an event of each. What waits fails with delegation_lost. A new password ends no trust and no
// application credential, only tokens.
func TestLongDelegationsThatEnd(t *testing.T) {
	t.Parallel()
	d := newDelegates(t)
	conn := testkit.Connect(t, d.database)
	own := func() *testkit.Project {
		p := testkit.NewProject(t)
		d.tokens[p] = p.Token(t)
		return p
	}
	deleted, roleless, disabled, renewed, closed := d.owner, own(), own(), own(), own()
	var all []*delegation
	for _, one := range []delegation{
		{name: "trust deleted", kind: trust, owner: deleted, want: "lost"},
		{name: "credential deleted", kind: credential, owner: deleted, want: "lost"},
		{name: "role removed", owner: roleless, want: "lost"},
		{name: "user disabled", owner: disabled, want: "lost"},
		{name: "password reset", owner: renewed, want: "active"},
		{name: "project disabled", owner: closed, want: "lost"},
	} {
		for _, kind := range []string{trust, credential} {
			if one.kind == "" || one.kind == kind {
				both := one
				both.kind = kind
				d.begin(t, conn, &both)
				all = append(all, &both)
			}
		}
	}
	last := &delegation{name: "credential ended", kind: credential, owner: deleted, want: "lost"}
	d.begin(t, conn, last)
	all = append(all, last)

	for _, one := range all {
		d.connectNothing(t, one)
	}
	d.of("run-connections").Tick(t, "run-connections")
	for _, one := range all {
		got := d.ended(t, one.connection, *one.requested)
		if one.requested = nil; got != "failed" { // Nova has no such server, which takes a session to say
			t.Fatalf("%s: the action is %s", one.name, got)
		}
	}
	deleted.DropTrust(t, all[0].inKeystone)
	deleted.DropAppCredential(t, all[1].inKeystone)
	roleless.Leave(t)
	disabled.Disable(t)
	renewed.ResetPassword(t)
	closed.Close(t)
	testkit.Expire(t, last.inKeystone)
	// A test cannot wait for some minutes, so the moments are moved. The trusts are used then, and the credentials are
	// idle.
	change(t, conn, "update connections set checked_at = checked_at - interval '1 minute'")
	for _, one := range all {
		if one.kind == trust {
			d.connectNothing(t, one)
		}
	}
	change(t, conn, "update connections set next_check_at = next_check_at - interval '8 minutes'")
	d.of("run-connections").Tick(t, "run-connections")
	for _, one := range all {
		d.sawEnd(t, conn, one)
	}
}

// begin makes a connection. One whose credential ends in Keystone at a moment has an end of its own after that.
func (d *delegates) begin(t *testing.T, conn *pgx.Conn, one *delegation) {
	t.Helper()
	if one.kind == trust {
		one.connection = d.delegated(t, one.owner, `"kind": "trust"`, time.Now().Add(time.Hour))
		one.inKeystone = testkit.Scalar[string](t, conn, "select delegation_id from connections where id = $1",
			one.connection)
		return
	}
	end := time.Now().Add(2 * time.Hour)
	id, secret := one.owner.AppCredentialUntil(t, end)
	one.inKeystone = id
	one.connection = d.delegated(t, one.owner, fmt.Sprintf(`"kind": "application_credential", "id": %q, "secret": %q`,
		id, secret), end.Add(-time.Second))
	change(t, conn, "update connections set expires_at = now() + interval '1 hour' where id = $1", one.connection)
}

func change(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// connectNothing requests a server that Nova does not have.
func (d *delegates) connectNothing(t *testing.T, one *delegation) {
	t.Helper()
	requested := d.at(d.actor, "servers").Post(t, "/v1/servers",
		fmt.Sprintf(`{"server_id": %q, "connection_id": %q}`, uuid.NewString(), one.connection))
	if requested.Status != http.StatusAccepted {
		t.Fatalf("%s: %d %s", one.name, requested.Status, requested.Body)
	}
	one.requested = &requested
}

// sawEnd checks how a connection is, its event, and what became of the action that waited.
func (d *delegates) sawEnd(t *testing.T, conn *pgx.Conn, one *delegation) {
	t.Helper()
	status, events := "", ""
	row := conn.QueryRow(context.Background(), `select status, (select string_agg(data->>'status', ' ' order by seq) from events
where subject = c.id::text and type = 'cloudfn.connection.state.v1') from connections c where id = $1`, one.connection)
	if err := row.Scan(&status, &events); err != nil {
		t.Fatal(err)
	}
	want := "active"
	if one.want != "active" {
		want += " " + one.want
	}
	if status != one.want || events != want {
		t.Errorf("%s, %s: it is %s, with the events %q", one.name, one.kind, status, events)
	}
	if check := d.check(t, d.actor, one.connection); check.Works == nil || *check.Works != (one.want == "active") ||
		check.Status != one.want {
		t.Errorf("%s, %s: the check says %+v", one.name, one.kind, check)
	}
	if one.requested == nil {
		return
	}
	code, ended := "delegation_lost", ""
	if one.want == "active" {
		code = "not_found"
	}
	testkit.Eventually(t, time.Minute, "the action has ended", func() bool {
		ended = testkit.Scalar[string](t, conn, `select status || ' ' || coalesce(problem->>'code', '') from actions
where connection_id = $1 order by created_at desc limit 1`, one.connection)
		return ended != "running "
	})
	if ended != "failed "+code {
		t.Errorf("%s, %s: what waited has %s, want %s", one.name, one.kind, ended, code)
	}
}
