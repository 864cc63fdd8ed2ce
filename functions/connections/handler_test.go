package connections

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// soon is a time as requests have it.
func soon(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339Nano) }

// asking is a request's body: the required fields, and more.
func asking(kind, more string) string {
	return fmt.Sprintf(`{"kind": %q, "actions": ["allocate", "start"], "expires_at": %q%s}`, kind, soon(time.Hour), more)
}

func create(t *testing.T, app *testkit.Client, body string) Connection {
	t.Helper()
	a := app.Post(t, "/v1/connections", body)
	if a.Status != 201 {
		t.Fatalf("%s: got %d %s", body, a.Status, a.Body)
	}
	var c Connection
	a.JSON(t, &c)
	if a.Header.Get("Location") != "/v1/connections/"+c.ID.String() {
		t.Errorf("Location is %q", a.Header.Get("Location"))
	}
	return c
}

// started is a replica with a database of its own, and what it wakes.
func started(
	t *testing.T, more map[string]string,
) (app *testkit.Client, conn *pgx.Conn, database string, woken *testkit.Wakes) {
	t.Helper()
	database, woken = testkit.Database(t), testkit.NewWakes(t)
	env := testkit.Env(t, database, more)
	env["WAKE_URL"] = woken.URL
	return testkit.Start(t, env, Function), testkit.Connect(t, database), database, woken
}

// TestTrustLifecycle creates a trust with the caller's token and the requested roles and end, and deletes it with the
// connection.
func TestTrustLifecycle(t *testing.T) {
	t.Parallel()
	app, conn, _, woken := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	user, team := strings.Repeat("0a", 16), strings.Repeat("b1", 32)
	c := create(t, app, fmt.Sprintf(`{
		"name": "build machines", "kind": "trust", "actions": ["allocate", "start"],
		"quota": {"instances": 3, "ram_mb": null},
		"usable_by": [%[1]q, %[2]q, %[1]q], "expires_at": %[3]q, "idle_timeout": "24h"}`, user, team, soon(48*time.Hour)))
	want := Connection{
		ID: c.ID, Name: "build machines", Kind: "trust", Status: "active", Actions: []domain.Permission{"allocate", "start"},
		UserID: p.UserID, ProjectID: p.ID,
		ExpiresAt: c.ExpiresAt, EndsAt: c.CreatedAt.Add(24 * time.Hour), IdleTimeout: "24h", CreatedAt: c.CreatedAt,
		UpdatedAt: c.UpdatedAt,
	}
	if fmt.Sprint(c.Name, c.Kind, c.Status, c.Actions, c.UserID, c.ProjectID, c.EndsAt, c.IdleTimeout, c.Used,
		c.LastUsedAt) !=
		fmt.Sprint(want.Name, want.Kind, want.Status, want.Actions, want.UserID, want.ProjectID, want.EndsAt,
			want.IdleTimeout, want.Used, want.LastUsedAt) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	if *c.Quota.Instances != 3 || c.Quota.RAMMB != nil || !slices.Equal(c.UsableBy, []string{user, team}) ||
		!slices.Equal(c.ActsAs.Roles, []string{"member"}) || c.ActsAs.UserID != p.UserID || c.ActsAs.ProjectID != p.ID ||
		len(c.Rules) == 0 || c.Warnings != nil {
		t.Errorf("got %+v", c)
	}

	made := onlyTrust(t, p)
	if made.Trustor != p.UserID || made.Trustee != testkit.Trustee(t) || made.ProjectID != p.ID || !made.Acts ||
		made.Uses != nil || len(made.Roles) != 1 || made.Roles[0].Name != "member" {
		t.Errorf("Keystone has %+v", made)
	}
	if end, err := time.Parse(time.RFC3339, made.ExpiresAt); err != nil ||
		end.Before(c.ExpiresAt.Add(10*time.Minute-time.Second)) || end.After(c.ExpiresAt.Add(20*time.Minute)) {
		t.Errorf("it expires at %s, the connection at %s", made.ExpiresAt, c.ExpiresAt)
	}
	session, as, err := testkit.Session(t, "collector").Trust(t.Context(), made.ID)
	if err != nil || as.UserID != p.UserID || as.ProjectID != p.ID || !slices.Contains(as.Roles, "member") {
		t.Fatalf("run-connections acts as %+v: %v", as, err)
	}
	if _, err := session.Quota(t.Context()); err != nil {
		t.Errorf("acting through it: %v", err)
	}
	if n := testkit.Scalar[int](t, conn, "select jsonb_array_length(flavors) from connections where id = $1",
		c.ID); n == 0 {
		t.Error("the cloud's flavors are not kept")
	}
	woken.Await(t, "deliver-events")

	path := "/v1/connections/" + c.ID.String()
	if a := app.Do(t, "DELETE", path, ""); a.Status != 204 {
		t.Fatalf("delete: %d %s", a.Status, a.Body)
	}
	if left := p.Trusts(t); len(left) != 0 {
		t.Errorf("Keystone still has %v", left)
	}
	if _, _, err := testkit.Session(t, "collector").Trust(t.Context(),
		made.ID); apperr.CodeOf(err) != apperr.Unauthenticated && apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("a login with a deleted trust: %v", err)
	}
	row := testkit.Scalar[string](t, conn, "select status || ' ' || revoked from connections where id = $1", c.ID)
	events := testkit.Scalar[string](t, conn,
		"select string_agg(seq || (data->>'status'), ' ' order by seq) from events where subject = $1 and type = "+
			"'cloudfn.connection.state.v1' and connection_id::text = subject", c.ID.String())
	if row != "deleted true" || events != "1active 2deleted" {
		t.Errorf("the row is %s, its events are %s", row, events)
	}
	var gone Connection
	if app.Get(t, path).JSON(t, &gone); gone.Status != "deleted" || gone.Revocation != domain.RevocationDone ||
		gone.Reason == "" || gone.TrustEnd.IsZero() {
		t.Errorf("it is shown as %+v", gone)
	}
	if a := app.Do(t, "DELETE", path, ""); a.Status != 404 {
		t.Errorf("DELETE once more: %d %s", a.Status, a.Body)
	}
	woken.Await(t, "run-connections")
}

// TestLists are in the order of time, page by page.
func TestLists(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	var ids []uuid.UUID
	for range 3 {
		ids = append(ids, create(t, app, asking("trust", "")).ID)
	}
	read := func(path string) (got []uuid.UUID, next string) {
		t.Helper()
		a := app.Get(t, path)
		var page ConnectionPage
		if a.JSON(t, &page); a.Status != 200 {
			t.Fatalf("%s: %d %s", path, a.Status, a.Body)
		}
		for _, c := range page.Connections {
			got = append(got, c.ID)
		}
		if page.Next != nil {
			next = *page.Next
		}
		return got, next
	}
	first, next := read("/v1/connections?limit=2")
	second, end := read(next)
	if !slices.Equal(append(first, second...), ids) || end != "" {
		t.Errorf("got %v and %v of %v", first, second, ids)
	}
	if _, err := conn.Exec(context.Background(),
		"update connections set status = 'lost', reason = 'canary' where id = $1",
		ids[1]); err != nil {
		t.Fatal(err)
	}
	if usable, _ := read("/v1/connections?usable=true"); !slices.Equal(usable, []uuid.UUID{ids[0], ids[2]}) {
		t.Errorf("usable are %v", usable)
	}
	if all, _ := read("/v1/connections?usable=false"); len(all) != 3 {
		t.Errorf("all are %v", all)
	}
	var lost Connection
	if app.Get(t, "/v1/connections/"+ids[1].String()).JSON(t, &lost); lost.Status != "lost" || lost.Reason != "canary" {
		t.Errorf("got %+v", lost)
	}
}

// TestLongNoTrust where the operator has set up no service account, or a wrong one. With a token of an application
// credential Keystone decides: newer versions reject it (shared/openstack tests the error), and then nothing is left
// behind.
func TestLongNoTrust(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	without, _, _, _ := started(t, map[string]string{"TRUSTEE_USER_ID": ""})
	if a := without.As(p.Token(t)).Post(t, "/v1/connections", asking("trust", "")); a.Status != 501 ||
		!strings.Contains(string(a.Body), "application credential") {
		t.Errorf("without a trustee: %d %s", a.Status, a.Body)
	}
	app, conn, _, _ := started(t, nil)
	id, secret := p.AppCredential(t)
	auth := object{"identity": object{
		"methods":                []string{"application_credential"},
		"application_credential": object{"id": id, "secret": secret},
	}}
	_, token := keystone(t, "", "POST", "/v3/auth/tokens", object{"auth": auth}, nil)
	a, made := app.As(testkit.Canary(token)).Post(t, "/v1/connections", asking("trust", "")), 1
	if refused := a.Status == 409 && strings.Contains(string(a.Body), "kind application_credential"); refused {
		made = 0
	} else if a.Status != 201 {
		t.Errorf("with an application credential's token: %d %s", a.Status, a.Body)
	}
	nobody, _, _, _ := started(t, map[string]string{"TRUSTEE_USER_ID": "nobody"})
	if a := nobody.As(p.Token(t)).Post(t, "/v1/connections", asking("trust", "")); a.Status != 501 ||
		!strings.Contains(string(a.Body), "TRUSTEE_USER_ID") {
		t.Errorf("to an unknown user: %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from connections"); n != made || len(p.Trusts(t)) != made {
		t.Errorf("%d are stored, and Keystone has %v", n, p.Trusts(t))
	}
}

// TestTrustIsRevokedWhenItCannotBeStored: the project already has as many connections as it may have.
func TestTrustIsRevokedWhenItCannotBeStored(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	_, err := conn.Exec(t.Context(), `
insert into connections
	(id, project_id, domain_id, user_id, kind, delegation_id, acts_as, actions, usable_by, status, expires_at)
select gen_random_uuid(), $1, 'd', 'u', 'trust', 't', '{}', '{start}', '{}', 'active', now() + interval '1 day'
from generate_series(1, $2)`, p.ID, domain.MaxConnections)
	if err != nil {
		t.Fatal(err)
	}
	a := app.As(p.Token(t)).Post(t, "/v1/connections", asking("trust", ""))
	if a.Status != 409 || !strings.Contains(string(a.Body), "100") {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if left := p.Trusts(t); len(left) != 0 {
		t.Errorf("Keystone keeps %v", left)
	}
}

// TestDeleteWithoutKeystone ends the connection, and leaves the trust to run-connections.
func TestDeleteWithoutKeystone(t *testing.T) {
	t.Parallel()
	proxy := testkit.Redirect(t)
	app, conn, _, woken := started(t, proxy.Env(t, "demo"))
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	c := create(t, app, asking("trust", ""))
	proxy.Close()
	if a := app.Do(t, "DELETE", "/v1/connections/"+c.ID.String(), ""); a.Status != 204 { // the token is still known
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if row := testkit.Scalar[string](t, conn, "select status || ' ' || revoked from connections where id = $1",
		c.ID); row != "deleted false" {
		t.Errorf("the row is %s", row)
	}
	woken.Await(t, "run-connections")
	if left := p.Trusts(t); len(left) != 1 {
		t.Errorf("Keystone has %v", left)
	}
}
