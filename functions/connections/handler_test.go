package connections

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
	session, err := testkit.Session(t, "collector").WithTrust(t.Context(), made.ID)
	if err != nil {
		t.Fatal(err)
	}
	if as := session.ActsAs(); as.UserID != p.UserID || as.ProjectID != p.ID || !slices.Contains(as.Roles, "member") {
		t.Errorf("run-connections acts as %+v", as)
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
	if _, err := testkit.Session(t, "collector").WithTrust(t.Context(),
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

// TestLongListEndedConnections lists them for their own project, by status; deleted ones only on request.
func TestLongListEndedConnections(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	owner, actor := app.As(p.Token(t)), app.As(other.Token(t))
	ids := map[string]string{}
	for _, status := range []string{"active", "expired", "lost", "deleted"} {
		id := create(t, owner, asking("trust", fmt.Sprintf(`, "usable_by": [%q]`, other.ID))).ID.String()
		ids[id] = status
		_, err := conn.Exec(t.Context(), "update connections set status = $2 where id = $1", id, status)
		if err != nil {
			t.Fatal(err)
		}
		want := map[bool]int{true: 404, false: 200}[status == "deleted"]
		if a, theirs := owner.Get(t, "/v1/connections/"+id), actor.Get(t, "/v1/connections/"+id); a.Status != 200 ||
			theirs.Status != want {
			t.Errorf("%s: its owner gets %d %s, another project %d %s", status, a.Status, a.Body, theirs.Status,
				theirs.Body)
		}
	}
	for query, want := range map[string]string{
		"": "active expired lost ", "?status=deleted": "deleted ", "?status=deleted,lost": "lost deleted ",
		"?status=active,active": "active ",
		"?usable=true":          "active ", "?status=active,expired,lost,deleted": "active expired lost deleted ",
	} {
		var page ConnectionPage
		a := owner.Get(t, "/v1/connections"+query)
		a.JSON(t, &page)
		var got strings.Builder
		for _, c := range page.Connections {
			got.WriteString(string(c.Status) + " ")
			if revocation := map[bool]domain.Revocation{
				true:  "",
				false: "pending",
			}[c.Status == "active"]; c.Revocation != revocation || ids[c.ID.String()] != string(c.Status) {
				t.Errorf("%q shows %+v", query, c)
			}
		}
		if got.String() != want {
			t.Errorf("%q: got %s%s, want %s", query, &got, a.Body, want)
		}
		var theirs ConnectionPage
		actor.Get(t, "/v1/connections"+query).JSON(t, &theirs)
		if query != "?usable=true" && len(theirs.Connections) != 0 {
			t.Errorf("%q: another project is shown %+v", query, theirs)
		}
	}
}

// TestLongConnectionsWithTheSameEnd works around Keystone, which accepts one trust of a user for each end and counts
// deleted ones.
func TestLongConnectionsWithTheSameEnd(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	body := asking("trust", "")
	first := create(t, app, body)
	second := create(t, app, body)
	for _, c := range []Connection{first, second} {
		if a := app.Do(t, "DELETE", "/v1/connections/"+c.ID.String(), ""); a.Status != 204 {
			t.Fatalf("delete: %d %s", a.Status, a.Body)
		}
	}
	statuses := make(chan testkit.Answer, 10)
	for range cap(statuses) {
		go func() {
			a, _ := app.Try(t, "POST", "/v1/connections", body, "Content-Type", "application/json")
			statuses <- a
		}()
	}
	for range cap(statuses) {
		if a := <-statuses; a.Status != 201 {
			t.Errorf("immediately: %d %s", a.Status, a.Body)
		}
	}
	if there := p.Trusts(t); len(there) != cap(statuses) {
		t.Errorf("Keystone has %d trusts", len(there))
	}
}

// TestSuspendAndResume checks that both are idempotent.
func TestSuspendAndResume(t *testing.T) {
	t.Parallel()
	app, _, _, woken := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	c := create(t, app, asking("trust", ""))
	path := "/v1/connections/" + c.ID.String()
	for _, tc := range []struct{ verb, status, etag string }{
		{"/resume", "active", `"1"`},
		{"/suspend", "suspended", `"2"`},
		{"/suspend", "suspended", `"2"`},
		{"/resume", "active", `"3"`},
	} {
		a := app.Post(t, path+tc.verb, "")
		var now Connection
		if a.JSON(t, &now); a.Status != 200 || string(now.Status) != tc.status || a.Header.Get("ETag") != tc.etag ||
			(!now.SuspendedAt.IsZero()) != (tc.status == "suspended") {
			t.Errorf("%s: got %d %s", tc.verb, a.Status, a.Body)
		}
		var usable, listed ConnectionPage
		app.Get(t, "/v1/connections?usable=true").JSON(t, &usable)
		app.Get(t, "/v1/connections?status="+tc.status).JSON(t, &listed)
		if (len(usable.Connections) == 1) != (tc.status == "active") || len(listed.Connections) != 1 {
			t.Errorf("while it is %s %d are usable, and %d listed", tc.status, len(usable.Connections),
				len(listed.Connections))
		}
	}
	woken.Await(t, "run-connections")
	app.Do(t, "DELETE", path, "")
	if a := app.Post(t, path+"/resume", ""); a.Status != 409 {
		t.Errorf("after its end: %d %s", a.Status, a.Body)
	}
}

// TestChangesAreLimited by all replicas together: each writes an event, and a delivery for each of up to 100 callbacks.
func TestChangesAreLimited(t *testing.T) {
	t.Parallel()
	limited := map[string]string{"CHANGE_RATE_LIMIT": "3"}
	one, conn, database, _ := started(t, limited)
	p := testkit.BorrowProject(t)
	one = one.As(p.Token(t))
	two := testkit.Start(t, testkit.Env(t, database, limited), Function).As(p.Token(t))
	path := "/v1/connections/" + create(t, one, asking("trust", "")).ID.String()
	suspend := func(app *testkit.Client) testkit.Answer { return app.Post(t, path+"/suspend", "") }
	resume := func(app *testkit.Client) testkit.Answer { return app.Post(t, path+"/resume", "") }
	rename := func(name string) func(*testkit.Client) testkit.Answer {
		return func(app *testkit.Client) testkit.Answer {
			return app.Do(t, "PATCH", path, fmt.Sprintf(`{"name": %q}`, name), "Content-Type", "application/json")
		}
	}
	for n, tc := range []struct {
		status int
		change func(*testkit.Client) testkit.Answer
	}{
		{200, suspend},
		{200, suspend}, // it changes nothing, and does not count
		{200, rename("a")},
		{200, rename("a")},
		{200, resume},
		{200, resume},
		{429, suspend},
		{429, rename("b")},
		{200, rename("a")},
	} {
		if a := tc.change([]*testkit.Client{one, two}[n%2]); a.Status != tc.status ||
			a.Status == 429 && a.Header.Get("RateLimit-Policy") != `"change";q=3;w=60` {
			t.Errorf("change %d: got %d %.200s, want %d", n, a.Status, a.Body, tc.status)
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events"); n != 4 {
		t.Errorf("%d events, want that of the creation and three", n)
	}
}
