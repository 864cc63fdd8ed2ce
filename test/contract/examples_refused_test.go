package contract_test

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// refusal is how a status is provoked of every operation that documents it.
type refusal struct {
	status int
	change func(operation, *variant)
	fits   func(operation) bool // nil = every one
}

// refuse provokes error statuses of one replica, several operations concurrently.
func (e *examples) refuse(t *testing.T, where string, client *testkit.Client, refusals ...refusal) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	hands := make(chan struct{}, 8)
	for _, r := range refusals {
		for id, o := range e.operations {
			status := strconv.Itoa(r.status)
			if o.Responses.Value(status) == nil || r.fits != nil && !r.fits(o) || never[id+" "+status] != "" {
				continue
			}
			a := variant{client: client, where: where}
			if change, ok := exceptions[id]; ok {
				change(&a)
			}
			if r.change != nil {
				r.change(o, &a)
			}
			all.Go(func() {
				hands <- struct{}{}
				defer func() { <-hands }()
				e.send(t, id, r.status, a)
			})
		}
	}
}

// exceptions are the requests whose names is looked for in the database.
var exceptions = map[string]func(*variant){
	"listOrders":      func(a *variant) { a.query = []string{"connection_id"} },
	"listServers":     func(a *variant) { a.query = []string{"connection_id"} },
	"launch":          func(a *variant) { a.example = "delegated" },
	"connectServer":   func(a *variant) { a.example = "delegated" },
	"actOnServer":     func(a *variant) { a.example = "reboot" },
	"actOnServers":    func(a *variant) { a.example = "delegated" },
	"createCallback":  func(a *variant) { a.example = "connection" },
	"getServerAction": func(a *variant) { a.query = []string{"connection_id"} },
	"createConnection": func(a *variant) {
		a.example, a.set = "trust", map[string]any{"expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}
	},
	"findFreeHosts":    func(a *variant) { a.query = []string{"duration"} },
	"signIn":           func(a *variant) { a.example = "token" },
	"getReferenceFile": func(a *variant) { a.path = "/v1/docs/absent.js" },
	"createVolume":     func(a *variant) { a.example = "copy" },
	"getAgentBundle":   func(a *variant) { a.header = []string{"Authorization", "Bearer none"} },
	"agentReady":       func(a *variant) { a.header = []string{"Authorization", "Bearer none"} },
	"reportNode":       func(a *variant) { a.header = []string{"Authorization", "Bearer none"} },
}

func withToken(o operation) bool {
	return o.Security == nil // what the document says of all: a token of Keystone
}

func isEvent(o operation) bool { return strings.HasPrefix(o.path, "/events/") }

func isConsole(o operation) bool { return slices.Contains(o.Tags, "console") }

// byTheRequest are the refusals that a request alone provokes.
var byTheRequest = []refusal{
	{
		status: 400, fits: func(o operation) bool { return !isEvent(o) && !isConsole(o) },
		change: func(_ operation, a *variant) { a.query = append(a.query, "nonsense=1") },
	},
	{status: 400, fits: isEvent, change: func(_ operation, a *variant) { a.header = []string{"Ce-Specversion", ""} }},
	{status: 401, change: func(_ operation, a *variant) { a.client = a.client.As("") }, fits: withToken},
	{status: 403, fits: isEvent, change: func(_ operation, a *variant) { a.header = []string{"Ce-Cloudfnkey", "another"} }},
	{status: 404, fits: func(o operation) bool {
		return !slices.Contains(alwaysFound, o.OperationID) && !isConsole(o)
	}},
	{status: 405, change: func(o operation, a *variant) { a.method = otherMethod(o) }},
	{status: 406, change: func(_ operation, a *variant) { a.header = []string{"Accept", "application/pdf"} }},
	{
		status: 413, change: func(_ operation, a *variant) { a.body = strings.Repeat(" ", 1<<20+1) },
		fits: func(o operation) bool { return o.RequestBody != nil },
	},
	{
		status: 415, change: func(_ operation, a *variant) { a.header = []string{"Content-Type", "text/plain"} },
		fits: func(o operation) bool { return !isEvent(o) },
	},
	{
		status: 415, change: func(_ operation, a *variant) { a.header = []string{"Ce-Type", "com.example.other"} },
		fits: isEvent,
	},
}

// alwaysFound are operations whose examples name nothing that could be absent.
var alwaysFound = []string{"createConnection", "listManagedOfKind", "listResources", "putManaged"}

// otherMethod is one that no operation has: a path answers 405 to it.
func otherMethod(o operation) string {
	switch {
	case isEvent(o):
		return http.MethodGet
	case strings.HasPrefix(o.path, "/v1/flavors"), strings.HasPrefix(o.path, "/v1/managed"):
		return http.MethodPatch
	}
	return http.MethodPut
}

// spawn starts a daemon whose own ticks count one project at most.
func spawn(t *testing.T, database string, more map[string]string) *testkit.Client {
	t.Helper()
	env := map[string]string{"STATS_BACKFILL": "1h"}
	maps.Copy(env, more)
	return testkit.Spawn(t, testkit.Env(t, database, env)).Client
}

// keystone is the environment of a replica whose Keystone and whose other services are the handler.
func keystone(t *testing.T, handler http.HandlerFunc) map[string]string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return map[string]string{
		"OS_CLOUD": "", "OS_AUTH_URL": server.URL + "/v3", "OS_USERNAME": "nobody", "OS_PASSWORD": "none",
		"OS_USER_DOMAIN_NAME": "Default", "OS_PROJECT_NAME": "none", "OS_PROJECT_DOMAIN_NAME": "Default",
	}
}

// services is the environment of a replica that gets one answer from every service but Keystone.
func services(t *testing.T, status int) map[string]string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request,
	) {
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	to := map[string]string{}
	for _, service := range []string{"compute", "image", "network", "placement", "volumev3"} {
		to[service] = server.URL
	}
	return testkit.RedirectTo(t, to).Env(t, "demo")
}

func (e *examples) refusedByTheRequest(t *testing.T) {
	t.Parallel()
	client := spawn(t, testkit.Database(t), map[string]string{"OS_CLOUD": "demo"}).As(adminToken(t))
	e.refuse(t, "a daemon", client, byTheRequest...)
}

// adminToken is a token of an admin of the cloud, in a project of its own: others get 403 of the routes of nodes.
func adminToken(t *testing.T) string {
	t.Helper()
	p := testkit.BorrowProject(t)
	p.Grant(t, p.UserID, "admin")
	return p.Token(t)
}

func (e *examples) refusedByTheOperator(t *testing.T) {
	t.Parallel()
	project := testkit.BorrowProject(t)
	client := spawn(t, testkit.Database(t), map[string]string{
		"OS_CLOUD": "demo", "ALLOWED_PROJECTS": "another", "TRUSTEE_USER_ID": uuid.NewString(),
	})
	e.refuse(t, "ALLOWED_PROJECTS of others", client.As(project.Token(t)), refusal{status: 403, fits: withToken})
	client = spawn(t, testkit.Database(t), map[string]string{"OS_CLOUD": "demo", "TRUSTEE_USER_ID": uuid.NewString()})
	e.refuse(t, "an unknown trustee", client.As(project.Token(t)), refusal{status: 501, fits: func(o operation) bool {
		return o.OperationID == "createConnection"
	}})
	client = spawn(t, testkit.Database(t), map[string]string{"OS_CLOUD": "demo", "MANAGED_PER_PROJECT": "1"})
	client = client.As(project.Token(t))
	const template = `{"name": "first", "kind": "Configmap", "spec": {"data": {"a": "b"}}}`
	if a := client.Post(t, "/v1/flavors", template); a.Status != 201 {
		t.Fatalf("the first template: got %d %s", a.Status, a.Body)
	}
	e.refuse(t, "MANAGED_PER_PROJECT", client, refusal{
		status: 409, fits: func(o operation) bool { return o.OperationID == "putFlavor" },
		change: func(_ operation, a *variant) { a.header = []string{"If-Match", ""} },
	})
	wrong := testkit.Redirect(t).Env(t, "collector")
	wrong["OS_PASSWORD"] = "wrong"
	database := testkit.Database(t)
	// so that there is something to look after
	strayOrder(t, database, project)
	// alone: a daemon's own ticks would be at it
	for _, wrong["FUNCTION_TARGET"] = range []string{"collect-stats", "poll-instances"} {
		e.refuse(t, "a service account with a wrong password", spawn(t, database, wrong),
			refusal{status: 422, fits: func(o operation) bool {
				return o.path == "/events/"+wrong["FUNCTION_TARGET"]
			}})
	}
}

func (e *examples) refusedByKeystone(t *testing.T) {
	t.Parallel()
	for status, answer := range map[int]http.HandlerFunc{
		429: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		502: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"token": {}}`)) },
	} {
		client := spawn(t, testkit.Database(t), keystone(t, answer))
		e.refuse(t, "a Keystone that answers "+map[int]string{429: "429", 502: "nonsense"}[status], client.As("token"),
			refusal{status: status})
	}
}

func (e *examples) refusedByServices(t *testing.T) {
	t.Parallel()
	project, database := testkit.BorrowProject(t), testkit.Database(t)
	order, connection := strayOrder(t, database, project), strayTrust(t, database, project)
	lease := strayLeases(t, database, project)
	strayManaged(t, database, project)
	for status, answer := range map[int]int{501: http.StatusNotAcceptable, 404: http.StatusNotFound} {
		env := services(t, answer)
		env["TRUSTEE_USER_ID"] = ""
		client := spawn(t, database, env).As(project.Token(t))
		e.refuse(t, "services that answer "+http.StatusText(answer), client,
			refusal{status: status, fits: func(o operation) bool {
				return status == 501 && !isConsole(o) || o.OperationID == "listResources"
			}, change: func(o operation, a *variant) {
				a.real = order
				switch o.OperationID {
				case "changeConnection":
					a.real, a.example, a.header = connection, "longer", []string{"If-Match", ""}
					a.set = map[string]any{"expires_at": time.Now().Add(2 * time.Hour).UTC().Format(time.RFC3339)}
				case "createLease":
					a.example, a.set = "instance", soonest
				case "changeLease", "retryLease":
					a.real, a.header = lease(o.OperationID), []string{"If-Match", ""}
				case "deleteManaged":
					a.header = []string{"If-Match", ""}
				case "listServers", "getServerAction":
					a.query = nil
				case "launch":
					a.example = "one"
				case "connectServer":
					a.example = "own"
				}
			}})
	}
}

// strayOrder stores an order with a server, and a request for a connection, and says what stands for those of the
// examples.
func strayOrder(t *testing.T, database string, project *testkit.Project) *strings.Replacer {
	t.Helper()
	order, server, request := uuid.NewString(), uuid.NewString(), uuid.NewString()
	if _, err := testkit.Pool(t, database).Exec(t.Context(), `
with o as (insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status) values ($1, $2, '', '', '', '{}', 'running')),
r as (insert into connection_requests (id, project_id, requester_project_id, requester_user_id, grantee, why, actions, duration, expires_at)
      values ($4, $1, 'p', 'u', 'user', 'x', '{start}', '1 hour', now() + interval '1 hour'))
insert into instances (project_id, id, order_id, position, name, state, origin, server_id) values ($1, gen_random_uuid(), $2, 0, 'x', 'building', 'launched', $3)`,
		project.ID, order, server, request); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(exampleOrder, order, exampleServer, server, exampleRequest, request)
}

// refusedByPostgres: what may be done is taken from the role, then a lock is held, then Postgres stops.
func (e *examples) refusedByPostgres(t *testing.T) {
	t.Parallel()
	cluster := testkit.NewCluster(t)
	conn := testkit.Connect(t, cluster.URL)
	for _, sql := range []string{
		"create role writer", "grant usage on schema public to writer", "grant select on schema_versions to writer",
		"grant insert on requests to writer",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(cluster.URL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("role", "writer")
	u.RawQuery = query.Encode()
	token := adminToken(t)
	client := spawn(t, u.String(), map[string]string{"OS_CLOUD": "demo", "REQUEST_TIMEOUT": "60s"}).As(token)
	e.refuse(t, "a role that may only write the request log", client,
		refusal{status: 500, fits: func(o operation) bool {
			return !isConsole(o)
		}})
	e.consoleDown(t, 500, variant{client: client, where: "a role that may only write the request log"})
	e.send(t, "signIn", 500, variant{
		client: client, where: "a role that may only write the request log", example: "token",
		set: map[string]any{"token": token},
	})

	hurried := spawn(t, u.String(), map[string]string{"OS_CLOUD": "demo", "REQUEST_TIMEOUT": "1s"}).As(token)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table schema_versions in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	e.refuse(t, "a lock in Postgres", hurried, refusal{status: 504})
	_ = tx.Rollback(context.Background())
	cluster.Stop(t)
	e.refuse(t, "Postgres is stopped", client, refusal{status: 503})
	e.consoleDown(t, 503, variant{client: client, where: "Postgres is stopped"})
}
