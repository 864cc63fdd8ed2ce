package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// actionAnswer is the answer to an action.
type actionAnswer struct {
	status   int
	State    domain.InstanceState
	Changed  bool
	Detail   string
	ImageID  string `json:"image_id"`
	Password string `json:"admin_password"`
	Errors   []struct {
		Field   string
		Allowed []string
	}
}

// isAccepted reports whether Nova accepted the action.
func (a actionAnswer) isAccepted(state domain.InstanceState) bool {
	return a.status == 202 && a.Changed && a.State == state
}

// isIdle reports whether there was nothing to do.
func (a actionAnswer) isIdle(states ...domain.InstanceState) bool {
	return a.status == 200 && !a.Changed && slices.Contains(states, a.State)
}

// isRejected reports whether the state did not allow the action, with the actions that it allows.
func (a actionAnswer) isRejected(state domain.InstanceState) bool {
	return a.status == 409 && len(a.Errors) > 0 && a.Errors[0].Field == "action" &&
		slices.Equal(a.Errors[0].Allowed, domain.AllowedActions(state))
}

func sendAction(t *testing.T, app *testkit.Client, id, action string) (out actionAnswer) {
	t.Helper()
	body := fmt.Sprintf(`{"action":%q}`, action)
	if action == "hard" {
		body = `{"action":"reboot","hard":true}`
	}
	a := app.Post(t, "/v1/servers/"+id+"/actions", body)
	a.JSON(t, &out)
	out.status = a.Status
	return out
}

// track stores the instance of a server; "" = one without a server yet.
func track(t *testing.T, conn *pgx.Conn, p *testkit.Project, serverID string, state domain.InstanceState) string {
	t.Helper()
	id := uuid.NewString()
	_, err := conn.Exec(context.Background(), `
insert into instances (project_id, id, position, name, server_id, state, origin)
values ($1, $2, 0, 'x', nullif($3, ''), $4, 'launched')`, p.ID, id, serverID, state)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// waker is a server in place of the event functions, which records the paths of their wake events.
func waker(t *testing.T) (wakeURL string, woken func() []string) {
	t.Helper()
	var mu sync.Mutex
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/{function}", func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(paths)
	}
}

// result is the result for one of many servers.
type result struct {
	ID      string
	State   domain.InstanceState
	Changed *bool
	Error   *struct {
		Code    string
		Detail  string
		Allowed []string
	}
}

func (r result) String() string {
	if r.Error != nil {
		return r.Error.Code + " " + strings.Join(r.Error.Allowed, ",")
	}
	return fmt.Sprintf("%s %t", r.State, *r.Changed)
}

// linked is the answer to POST /v1/servers.
type linked struct {
	ID           uuid.UUID
	ServerID     string `json:"server_id"`
	State        domain.InstanceState
	Origin       string
	ConnectionID *uuid.UUID `json:"connection_id"`
	ActionID     *uuid.UUID `json:"action_id"`
}

func link(t *testing.T, app *testkit.Client, body string, args ...any) (int, linked) {
	t.Helper()
	a := app.Post(t, "/v1/servers", fmt.Sprintf(body, args...))
	var out linked
	a.JSON(t, &out)
	if a.Status < 300 && a.Status != 202 && a.Header.Get("Location") != "/v1/servers/"+out.ServerID {
		t.Errorf("the location is %q", a.Header.Get("Location"))
	}
	return a.Status, out
}

// delegated is a connection of the project "owner" and a user of it from another project. The function connections
// would store the same; nothing here uses the delegation itself.
type delegated struct {
	domain.Connection

	app      *testkit.Client // of the user
	conn     *pgx.Conn
	database string
	woken    func() []string
}

// instance stores an instance that the connection manages, and returns its id and its server's.
func (d delegated) instance(t *testing.T, state domain.InstanceState, origin string) (id, server string) {
	t.Helper()
	id, server = uuid.NewString(), uuid.NewString()
	d.exec(t, `
insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, connection_id, created_at,
                       spec, addresses)
values ($1, $2, 0, 'web', $3, $4, 'SHUTOFF', $5, $6, clock_timestamp(),
        '{"flavor_id":"f1","flavor_name":"small","vcpus":2,"ram_mb":2048,"image_id":"i1","network_ids":[]}',
        '[{"network":"n","ip":"10.0.0.7","version":4,"type":"fixed"}]')`, owner, id, server, state, origin, d.ID)
	return id, server
}

func (d delegated) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := d.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// act sends an action through the connection; body has a %q for the connection's id.
func (d delegated) act(t *testing.T, id, body string) (a testkit.Answer, action string) {
	t.Helper()
	a = d.app.Post(t, "/v1/servers/"+id+"/actions", fmt.Sprintf(body, d.ID))
	var out struct {
		ActionID string `json:"action_id"`
	}
	a.JSON(t, &out)
	return a, out.ActionID
}

// remove sends DELETE through the connection.
func (d delegated) remove(t *testing.T, id, query string) testkit.Answer {
	t.Helper()
	return d.app.Do(t, http.MethodDelete, "/v1/servers/"+id+"?"+query+"&connection_id="+d.ID.String(), "")
}

// path is a path with the connection's id in its query.
func (d delegated) path(path string) string { return path + "?connection_id=" + d.ID.String() }

// stored are the actions that are stored, each with its instance and status.
func (d delegated) stored(t *testing.T) []string {
	t.Helper()
	rows, _ := d.conn.Query(t.Context(), `
select project_id || ' ' || verb || case when hard then ' hard' else '' end || ' ' || instance_id || ' ' || status
from actions order by created_at`)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

const owner = "owner"

func delegate(t *testing.T, change func(*domain.Connection)) delegated {
	t.Helper()
	database := testkit.Database(t)
	wakes, woken := waker(t)
	p := testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"WAKE_URL": wakes}), Function).As(p.Token(t))
	d := delegated{app: app, database: database, conn: testkit.Connect(t, database), woken: woken}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	c := domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: owner, DomainID: "d1", UserID: "u1", Kind: domain.TrustConnection,
		DelegationID: "t", UsableBy: []string{p.UserID}, Flavors: []domain.Flavor{},
		ExpiresAt: time.Now().Add(time.Hour),
		Actions: []domain.Permission{
			domain.MayConnect, domain.MayStart, domain.MayStop, domain.MayReboot, domain.MayDeploy,
			domain.MayDeallocate,
		},
	}
	if change != nil {
		change(&c)
	}
	if d.Connection, err = (postgres.Connections{DB: db}).Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return d
}

// metadata returns a server's metadata in Nova, after adding more.
func metadata(t *testing.T, p *testkit.Project, id, more string) map[string]string {
	t.Helper()
	nova := testkit.Compute(t, p.Login(t))
	url, body := nova.Endpoint+"servers/"+id+"/metadata", strings.NewReader(`{"metadata":`+more+`}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if more == "" {
		req.Method, req.Body, req.ContentLength = http.MethodGet, nil, 0
	}
	req.Header.Set("X-Auth-Token", nova.Token())
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var found struct{ Metadata map[string]string }
	if err := json.NewDecoder(resp.Body).Decode(&found); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("Nova answered %s, %v", resp.Status, err)
	}
	return found.Metadata
}

// deployment is the body of an action that deploys a version.
const deployment = `{"action":"deploy","image":"registry.example.com/agent:%s","env":{"A":"canary-env"},
"join_token":"canary-join","confirm_rebuild":true}`

// proxyNova is a proxy for the real Nova: first may answer in its place, and change may change its answer about a
// server. It stands for a Nova that is too old or slow, or has servers that boot from volumes.
func proxyNova(
	t *testing.T, first func(http.ResponseWriter, *http.Request, []byte) bool, change func(map[string]any),
) map[string]string {
	t.Helper()
	nova, err := url.Parse(testkit.Compute(t, testkit.Login(t, "admin")).Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = nova.Scheme, nova.Host
	}}
	proxy.ModifyResponse = func(resp *http.Response) error {
		if change == nil || resp.Request.Method != http.MethodGet {
			return nil
		}
		var body map[string]map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
			return err
		}
		change(body["server"])
		changed, err := json.Marshal(body)
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(changed)), int64(len(changed))
		resp.Header.Del("Content-Length")
		return err
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !first(w, r, body) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	compute := server.URL + strings.TrimSuffix(nova.Path, "/")
	return testkit.RedirectTo(t, map[string]string{"compute": compute}).Env(t, "demo")
}

// loseResults leaves the actions as a replica does that was killed after Nova's answer, with an expired claim.
func loseResults(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	_, err := conn.Exec(t.Context(),
		"update keyed_actions set result = null, claim_id = gen_random_uuid(), claimed_until = clock_timestamp()")
	if err != nil {
		t.Fatal(err)
	}
}
