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

// TestAllFaultsGetTheSameAnswer so that nobody can probe for deployments.
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
