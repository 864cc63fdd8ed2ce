package agents

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	project = "p1"
	secret  = "canary-of-an-agent"
)

// deployed is a deployment of an instance, stored as the function servers does, and the user_data that Nova would be
// given.
type deployed struct {
	domain.Deployment

	token    string
	userData domain.Secret
}

func deploy(t *testing.T, database string, conn *pgx.Conn, url string, change func(*agent.Spec)) deployed {
	t.Helper()
	spec := agent.Spec{ProjectID: project, Instance: uuid.New(), Image: "agent:1", JoinToken: secret}
	if change != nil {
		change(&spec)
	}
	made, userData, err := agent.New(agent.Config{URL: url}, spec)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(context.Background(), `
insert into instances (project_id, id, position, name, server_id, state, origin)
values ($1, $2, 0, 'x', $3, 'active', 'connected')`,
		project, spec.Instance, uuid.NewString())
	if err != nil {
		t.Fatal(err)
	}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := (postgres.Deployments{DB: db}).Create(t.Context(), made, 10*time.Minute); err != nil {
		t.Fatal(err)
	}
	_, files := guestFiles(t, userData)
	token := strings.Split(files[parametersFile], "\n")[2]
	return deployed{made, token, userData}
}

func (d deployed) bundle(t *testing.T, app *testkit.Client) testkit.Answer {
	t.Helper()
	return app.Get(t, "/v1/agents/"+d.ID.String()+"/bundle", "Authorization", "Bearer "+d.token)
}

func (d deployed) ready(t *testing.T, app *testkit.Client) testkit.Answer {
	t.Helper()
	return app.Do(t, http.MethodPost, "/v1/agents/"+d.ID.String()+"/ready", "", "Authorization", "Bearer "+d.token)
}

// TestBundleAndReadyOnce serves the bundle for a minute and accepts one report, which is an event.
func TestBundleAndReadyOnce(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	d := deploy(t, database, conn, app.URL, nil)
	for range 2 { // its answer may get lost on the way
		if a := d.bundle(t, app); a.Status != 200 || string(a.Body) != string(d.Bundle) ||
			a.Header.Get("Content-Type") != "application/octet-stream" {
			t.Errorf("the bundle: %d %s", a.Status, a.Header)
		}
	}
	move(t, conn, d, "fetched_at = fetched_at - interval '61 seconds'")
	if a := d.bundle(t, app); a.Status != 404 {
		t.Errorf("after a minute: %d", a.Status)
	}
	if a := d.ready(t, app); a.Status != 204 || len(a.Body) != 0 {
		t.Errorf("ready: %d %s", a.Status, a.Body)
	}
	if a := d.ready(t, app); a.Status != 404 {
		t.Errorf("ready again: %d %s", a.Status, a.Body)
	}
	events := testkit.Scalar[string](t, conn,
		"select string_agg(type || ' ' || subject || ' ' || seq || ' ' || (data->>'deployment_id') || ' ' || "+
			"(data->>'image'), ';') from events")
	want := domain.AgentReadyEvent + " " + d.InstanceID.String() + " 1 " + d.ID.String() + " agent:1"
	if events != want {
		t.Errorf("the events are %q, want %q", events, want)
	}
	if testkit.Scalar[bool](t, conn, "select bundle is not null or ready_at is null from deployments") {
		t.Error("the bundle is still there, or ready_at is not recorded")
	}
	dump := testkit.Dump(t, database)
	if strings.Contains(dump, d.token) || strings.Contains(dump, secret) {
		t.Error("the database holds a secret in clear")
	}
	if n := testkit.Scalar[int](t, conn,
		"select count(*) from requests where function = 'agents' and path like '/v1/agents/%' and user_id = ''"); n != 5 {
		t.Errorf("%d of the 5 requests are in the log", n)
	}
}

// move sets columns of a stored deployment, so that the test need not wait.
func move(t *testing.T, conn *pgx.Conn, d deployed, what string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "update deployments set "+what+" where id = $1", d.ID); err != nil {
		t.Fatal(err)
	}
}

// TestAllFaultsGetTheSameAnswer so that no one can probe for deployments.
func TestAllFaultsGetTheSameAnswer(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	good, old := deploy(t, database, conn, app.URL, nil), deploy(t, database, conn, app.URL, nil)
	move(t, conn, old, "expires_at = clock_timestamp()")
	path := "/v1/agents/" + good.ID.String()
	bearer := "Bearer " + good.token
	want := ""
	for name, tc := range map[string]struct {
		path, method, body string
		header             []string
	}{
		"no token":       {path + "/bundle", "GET", "", nil},
		"another scheme": {path + "/bundle", "GET", "", []string{"Authorization", "Basic " + good.token}},
		"only a scheme":  {path + "/bundle", "GET", "", []string{"Authorization", "Bearer"}},
		"an empty token": {path + "/bundle", "GET", "", []string{"Authorization", "Bearer "}},
		"a wrong token":  {path + "/bundle", "GET", "", []string{"Authorization", bearer[:len(bearer)-1] + "x"}},
		"a long token": {
			path + "/bundle", "GET", "",
			[]string{"Authorization", bearer + strings.Repeat("x", 5000)},
		},
		"a token of Keystone": {path + "/bundle", "GET", "", []string{"X-Auth-Token", good.token}},
		"another's token":     {path + "/bundle", "GET", "", []string{"Authorization", "Bearer " + old.token}},
		"no such deployment": {
			"/v1/agents/" + uuid.NewString() + "/bundle", "GET", "",
			[]string{"Authorization", bearer},
		},
		"no id": {"/v1/agents/x/bundle", "GET", "", []string{"Authorization", bearer}},
		"too late": {
			"/v1/agents/" + old.ID.String() + "/bundle", "GET", "",
			[]string{"Authorization", "Bearer " + old.token},
		},
		"ready too late": {
			"/v1/agents/" + old.ID.String() + "/ready", "POST", "",
			[]string{"Authorization", "Bearer " + old.token},
		},
		"ready with a wrong one": {path + "/ready", "POST", "", []string{"Authorization", bearer + "x"}},
		"a parameter":            {path + "/bundle?x=1", "GET", "", []string{"Authorization", bearer}},
		"a body":                 {path + "/ready", "POST", strings.Repeat("x", 2<<20), []string{"Authorization", bearer}},
	} {
		a := app.Do(t, tc.method, tc.path, tc.body, tc.header...)
		got := strings.ReplaceAll(string(a.Body), a.Header.Get("X-Request-Id"), "R")
		if want == "" {
			want = got
		}
		if a.Status != 404 || got != want {
			t.Errorf("%s: %d %s, want %s", name, a.Status, got, want)
		}
	}
	if a := good.bundle(t, app); a.Status != 200 { // nothing of that has used it up
		t.Errorf("then the right one: %d %s", a.Status, a.Body)
	}
	if a := app.Do(t, http.MethodDelete, path+"/bundle", "", "Authorization", bearer); a.Status != 405 {
		t.Errorf("DELETE: %d", a.Status)
	}
}

func sql(t *testing.T, conn *pgx.Conn, statement string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

// throughConnection makes the deployment one of a new connection, which manages its instance.
func throughConnection(t *testing.T, conn *pgx.Conn, d deployed) uuid.UUID {
	t.Helper()
	id := uuid.New()
	sql(t, conn, `
insert into connections
	(id, project_id, domain_id, user_id, kind, delegation_id, acts_as, actions, usable_by, status, expires_at)
values ($1, $2, 'd1', 'u1', 'trust', 't', '{}', '{deploy}', '{}', 'active', clock_timestamp() + interval '1 hour')`,
		id, project)
	sql(t, conn, "update instances set connection_id = $2 where id = $1", d.InstanceID, id)
	sql(t, conn, "update deployments set connection_id = $2 where id = $1", d.ID, id)
	return id
}

// TestBundleEndsWithItsPermission rejects the bundle and the report once the permission has ended, before and after a
// fetch.
func TestBundleEndsWithItsPermission(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	disconnect := func(t *testing.T, d deployed) {
		t.Helper()
		if done, err := (postgres.Instances{DB: db}).Disconnect(t.Context(),
			domain.Filter{ProjectID: project, ConnectionID: uuid.Nil}, d.InstanceID); err != nil || !done {
			t.Errorf("%t %v", done, err)
		}
	}
	ends := func(status string) func(*testing.T, deployed) {
		return func(t *testing.T, d deployed) {
			t.Helper()
			sql(t, conn, "update connections set status = $2 where id = $1", throughConnection(t, conn, d), status)
		}
	}
	for name, end := range map[string]func(*testing.T, deployed){
		"disconnected": disconnect,
		"disconnected and connected again": func(t *testing.T, d deployed) {
			t.Helper()
			disconnect(t, d)
			sql(t, conn, "update instances set disconnected_at = null where id = $1", d.InstanceID)
		},
		"the server is being deleted": func(t *testing.T, d deployed) {
			t.Helper()
			sql(t, conn, "update instances set state = 'deleting' where id = $1", d.InstanceID)
		},
		"the server is deleted": func(t *testing.T, d deployed) {
			t.Helper()
			sql(t, conn, "update instances set state = 'deleted' where id = $1", d.InstanceID)
		},
		"the connection is deleted": ends("deleted"),
		"the connection is lost":    ends("lost"),
		"the connection is expired": ends("expired"),
		"the connection's time has ended": func(t *testing.T, d deployed) {
			t.Helper()
			sql(t, conn, "update connections set expires_at = clock_timestamp() where id = $1",
				throughConnection(t, conn, d))
		},
		"another connection has it": func(t *testing.T, d deployed) {
			t.Helper()
			old := throughConnection(t, conn, d)
			throughConnection(t, conn, d)
			sql(t, conn, "update deployments set connection_id = $2 where id = $1", d.ID, old)
		},
		"a newer deployment has replaced it": func(t *testing.T, d deployed) {
			t.Helper()
			newer := d.Deployment
			newer.ID = uuid.New()
			if err := (postgres.Deployments{DB: db}).Create(t.Context(), newer, time.Hour); err != nil {
				t.Error(err)
			}
		},
	} {
		fresh, fetched := deploy(t, database, conn, app.URL, nil), deploy(t, database, conn, app.URL, nil)
		if a := fetched.bundle(t, app); a.Status != 200 {
			t.Errorf("%s: before: %d", name, a.Status)
		}
		for _, d := range []deployed{fresh, fetched} {
			end(t, d)
			if a := d.bundle(t, app); a.Status != 404 {
				t.Errorf("%s: the bundle: %d", name, a.Status)
			}
			if a := d.ready(t, app); a.Status != 404 {
				t.Errorf("%s: ready: %d", name, a.Status)
			}
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events where type = $1",
		domain.AgentReadyEvent); n != 0 {
		t.Errorf("%d agents are said to be ready", n)
	}
	if err := (postgres.Delegations{DB: db}).Retire(t.Context(), 24*time.Hour, 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	left := "select count(*)::int from deployments d where bundle is not null and not exists (select from deployments " +
		"o where o.instance_id = d.instance_id and o.created_at < d.created_at)"
	if n := testkit.Scalar[int](t, conn, left); n != 0 {
		t.Errorf("%d bundles that no one may fetch are still stored", n)
	}
}

// TestConnectedDeployment serves the bundle while the connection is active. A deployment with the project's
// own token does not depend on it.
func TestConnectedDeployment(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	through, own := deploy(t, database, conn, app.URL, nil), deploy(t, database, conn, app.URL, nil)
	throughConnection(t, conn, through)
	connection := throughConnection(t, conn, own)
	sql(t, conn, "update deployments set connection_id = null where id = $1", own.ID)
	sql(t, conn, "update connections set status = 'deleted' where id = $1", connection)
	for _, d := range []deployed{through, own} {
		if a := d.bundle(t, app); a.Status != 200 {
			t.Errorf("the bundle: %d %s", a.Status, a.Body)
		}
		if a := d.ready(t, app); a.Status != 204 {
			t.Errorf("ready: %d %s", a.Status, a.Body)
		}
	}
}

// TestReadyNeedsAFetchedBundle rejects the report of an agent that has not fetched its bundle.
func TestReadyNeedsAFetchedBundle(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	d := deploy(t, database, conn, app.URL, nil)
	if a := d.ready(t, app); a.Status != 404 {
		t.Errorf("ready without a fetch: %d %s", a.Status, a.Body)
	}
	if a := d.bundle(t, app); a.Status != 200 {
		t.Errorf("the bundle: %d %s", a.Status, a.Body)
	}
	if a := d.ready(t, app); a.Status != 204 {
		t.Errorf("ready: %d %s", a.Status, a.Body)
	}
}

// TestHeadDoesNotFetch rejects HEAD, and does not start the minute of a repeated fetch.
func TestHeadDoesNotFetch(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	d := deploy(t, database, conn, app.URL, nil)
	for _, token := range []string{d.token, "wrong"} {
		a := app.Do(t, http.MethodHead, "/v1/agents/"+d.ID.String()+"/bundle", "", "Authorization", "Bearer "+token)
		if a.Status != 405 || a.Header.Get("Allow") != "GET" {
			t.Errorf("HEAD: %d %s", a.Status, a.Header)
		}
	}
	if testkit.Scalar[bool](t, conn, "select fetched_at is not null from deployments") {
		t.Error("the minute has begun")
	}
}

// TestBundleOfSuspendedConnection is rejected until the connection is resumed. An agent that has its bundle may report.
func TestBundleOfSuspendedConnection(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	fresh, fetched := deploy(t, database, conn, app.URL, nil), deploy(t, database, conn, app.URL, nil)
	if a := fetched.bundle(t, app); a.Status != 200 {
		t.Errorf("before: %d", a.Status)
	}
	for _, d := range []deployed{fresh, fetched} {
		throughConnection(t, conn, d)
	}
	sql(t, conn, "update connections set suspended_at = clock_timestamp()")
	for name, d := range map[string]deployed{"fresh": fresh, "fetched": fetched} {
		if a := d.bundle(t, app); a.Status != 404 {
			t.Errorf("%s: while it is suspended: %d", name, a.Status)
		}
	}
	if a := fetched.ready(t, app); a.Status != 204 {
		t.Errorf("ready while it is suspended: %d", a.Status)
	}
	sql(t, conn, "update connections set suspended_at = null, resumed_at = clock_timestamp()")
	if a := fresh.bundle(t, app); a.Status != 200 {
		t.Errorf("after it is resumed: %d %s", a.Status, a.Body)
	}
}
