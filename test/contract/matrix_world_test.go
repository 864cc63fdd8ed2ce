package contract_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	ownProject, otherProject = "11111111111111111111111111111111", "22222222222222222222222222222222"
	thirdProject             = "33333333333333333333333333333333"
	matrixUser               = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	servedDomain             = "default"
)

// The kinds of tokens.
const (
	noToken   = "none"
	unknown   = "unknown"
	unscoped  = "unscoped"
	ofDomain  = "domain"
	ofSystem  = "system"
	ofProject = "project"
	denied    = "a project that is not served"
)

// caller is a kind of token with roles.
type caller struct {
	name, scope string
	roles       []string
}

var callers = func() (list []caller) {
	list = []caller{{name: "nobody", scope: noToken}, {name: "a wrong token", scope: unknown}}
	for _, scope := range []string{unscoped, ofDomain, ofSystem, ofProject, denied} {
		for _, roles := range [][]string{
			{"load-balancer_observer", "key-manager:audit", "heat_stack_user"},
			{"reader"},
			{"member", "reader"},
			{"manager", "member", "reader"},
			{"admin", "manager", "member", "reader"},
		} {
			list = append(list, caller{name: scope + " " + strings.Join(roles, ","), scope: scope, roles: roles})
		}
	}
	return list
}()

// everyRole may declare resources of all kinds.
var everyRole = caller{name: "every role", scope: ofProject, roles: []string{
	"admin", "manager", "member", "reader", "creator", "load-balancer_member",
}}

func (c caller) has(roles ...string) bool {
	return slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(c.roles, r) })
}

func (c caller) mayWrite() bool { return c.has("member", "manager", "admin") }

func (c caller) token() string {
	if c.scope == noToken {
		return ""
	}
	return strings.ReplaceAll(c.name, " ", "_")
}

// keystoneToken is what Keystone says about the token.
func (c caller) keystoneToken() map[string]any {
	token := map[string]any{
		"expires_at": time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z"),
		"user":       map[string]any{"id": matrixUser, "name": "ann", "domain": map[string]any{"id": servedDomain}},
	}
	roles := []map[string]string{}
	for _, role := range c.roles {
		roles = append(roles, map[string]string{"id": role, "name": role})
	}
	project := func(id, domain string) {
		token["project"] = map[string]any{"id": id, "name": "p", "domain": map[string]any{"id": domain}}
	}
	token["roles"] = roles
	switch c.scope {
	case ofDomain:
		token["domain"] = map[string]any{"id": servedDomain}
	case ofSystem:
		token["system"] = map[string]bool{"all": true}
	case ofProject:
		project(ownProject, servedDomain)
	case denied:
		project(thirdProject, "another")
	}
	return token
}

// matrix serves all functions with a fake Keystone, whose services answer 503, or 403 where Nova wants an admin.
type matrix struct {
	operations   map[string]operation
	client       *testkit.Client
	pool         *pgxpool.Pool
	mine, theirs objects
	absent       objects
	sent, calls  atomic.Int64 // requests; calls of OpenStack besides those about tokens
	// cloud answers a call of OpenStack instead of 503; nil = none is answered
	cloud func(http.ResponseWriter, *http.Request) (isAnswered bool)
}

func newMatrix(t *testing.T, functions ...run.Function) *matrix {
	t.Helper()
	m := &matrix{operations: operations(document(t).Paths.Map())}
	cloud := httptest.NewServer(http.HandlerFunc(m.serveCloud))
	t.Cleanup(cloud.Close)
	database := testkit.Database(t)
	env := testkit.Env(t, database, map[string]string{
		"OS_CLOUD": "", "OS_AUTH_URL": cloud.URL + "/v3", "OS_USERNAME": "nobody",
		"OS_PASSWORD": "none", "OS_USER_DOMAIN_NAME": "Default", "OS_PROJECT_NAME": "none",
		"OS_PROJECT_DOMAIN_NAME": "Default", "ALLOWED_DOMAINS": servedDomain, "TRUSTEE_USER_ID": matrixUser,
	})
	m.client = testkit.Start(t, env, functions...)
	m.pool = testkit.Pool(t, database)
	m.mine, m.theirs, m.absent = m.insert(t, ownProject), m.insert(t, otherProject), newObjects()
	return m
}

func (m *matrix) serveCloud(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	callers := append(slices.Clone(callers), everyRole)
	by := func(token string) int {
		return slices.IndexFunc(callers, func(c caller) bool { return c.token() != "" && c.token() == token })
	}
	switch n := by(r.Header.Get("X-Auth-Token")); {
	case r.URL.Path == "/v3/auth/tokens" && r.Method == http.MethodGet:
		if n < 0 || callers[n].scope == unknown {
			w.Header().Set("WWW-Authenticate", "Keystone uri=\"none\"")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error": {"code": 401, "message": "no such token", "title": "Unauthorized"}}`))
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"token": callers[n].keystoneToken()})
	case strings.TrimSuffix(r.URL.Path, "/") == "/v3": // who confirms that a refusal is Keystone's, some seconds later
		_, _ = w.Write([]byte(`{"version": {"id": "v3.14", "status": "stable"}}`))
	case r.URL.Path == "/v3/auth/catalog":
		m.calls.Add(1)
		list := []any{}
		for _, service := range []string{
			"compute", "image", "network", "placement", "volumev3", "identity", "load-balancer", "key-manager",
		} {
			list = append(list, map[string]any{
				"type": service, "name": service, "id": service, "endpoints": []any{map[string]any{
					"id": service, "interface": "public", "region": "one", "region_id": "one",
					"url": "http://" + r.Host + "/" + service,
				}},
			})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"catalog": list})
	case n >= 0 && !callers[n].has("admin") && adminOnly.MatchString(r.URL.Path):
		m.calls.Add(1)
		w.WriteHeader(http.StatusForbidden)
	default:
		if m.calls.Add(1); m.cloud == nil || !m.cloud(w, r) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
}

// adminOnly are the calls that Nova's policy permits to admins only.
var adminOnly = regexp.MustCompile(`/(os-services|os-hypervisors|os-aggregates)`)

// rows gives a digest of each table but the request log. A condition leaves out the tables without its column.
func (m *matrix) rows(t *testing.T, where string) map[string]string {
	t.Helper()
	ctx, digests := context.Background(), map[string]string{}
	tables := testkit.Scalar[[]string](t, m.pool, `select array_agg(c.table_name::text) from information_schema.columns c
join information_schema.tables t using (table_schema, table_name)
where table_schema = 'public' and table_type = 'BASE TABLE' and c.table_name not like 'requests%'
  and c.ordinal_position = 1 and ($1 = '' or exists (select from information_schema.columns p
      where p.table_schema = 'public' and p.table_name = c.table_name and p.column_name = 'project_id'))`, where)
	for _, table := range tables {
		var digest string
		query := fmt.Sprintf("select coalesce(md5(string_agg(r::text, '' order by r::text)), '') from %s r%s", table, where)
		if err := m.pool.QueryRow(ctx, query).Scan(&digest); err != nil {
			t.Fatal(err)
		}
		digests[table] = digest
	}
	return digests
}

// matrixExamples are what the matrix sends, where the first example names no object.
var matrixExamples = map[string]func(*variant){
	"createLease":  func(a *variant) { a.example, a.set = "instance", soonest },
	"deleteServer": func(a *variant) { a.query = []string{"connection_id"} },
}

// noun is what the tests need to know of a noun. Each file examples_NOUN_test.go that `make new` writes adds its own.
type noun struct {
	example string                   // the id in the examples
	row     string                   // stores one; $id, $project, $user and what matrixRows names stand for values
	texts   map[string]string        // see keptHere
	story   func(*story, *testing.T) // sends the examples of all operations that succeed
}

var nouns []noun

func addNoun(n noun) bool { //nolint:unparam // a package's variable needs a value
	nouns = append(nouns, n)
	maps.Copy(keptHere, n.texts)
	return true
}

// objects are names and ids by those of the examples.
type objects map[string]string

const (
	exampleTemplate = "{flavor}"
	exampleManaged  = "{managed}"
	sentRequest     = "{sent}"
	exampleNode     = "compute-1.example.com"
)

func newObjects() objects {
	o := objects{exampleNode: exampleNode}
	for _, id := range []string{
		exampleOrder, exampleInstance, exampleServer, exampleSecond, exampleConnection, exampleCallback,
		exampleDelivery, exampleDeployment, exampleAction, exampleRequest, exampleTemplate,
		exampleManaged, sentRequest,
	} {
		o[id] = uuid.NewString()
	}
	for _, n := range nouns {
		o[n.example] = uuid.NewString()
	}
	return o
}

// replacer puts the names in the place of those of an operation's examples. A request for a connection is received,
// or, for who withdraws it, sent.
func (o objects) replacer(op operation) *strings.Replacer {
	pairs := []string{}
	for example, name := range o {
		if example == exampleRequest && op.OperationID == "withdrawConnectionRequest" {
			name = o[sentRequest]
		}
		pairs = append(pairs, example, name)
	}
	return strings.NewReplacer(pairs...)
}

// path is the operation's path with the names that are no ids.
func (o objects) path(op operation) string {
	name := o[exampleManaged]
	if strings.HasPrefix(op.path, "/v1/flavors") {
		name = o[exampleTemplate]
	} else if strings.HasPrefix(op.path, "/v1/nodes") {
		name = o[exampleNode]
	}
	return strings.NewReplacer("{name}", name, "{number}", "1").Replace(op.path)
}

var requestID = regexp.MustCompile(`req-[0-9a-f-]{36}`)

// unnamed is an answer without the names.
func (o objects) unnamed(a testkit.Answer) string {
	text := fmt.Sprint(a.Status, " ", requestID.ReplaceAllString(string(a.Body), ""))
	for example, name := range o {
		text = strings.ReplaceAll(text, name, example)
	}
	return text
}

// insert stores one object of each kind in a project.
func (m *matrix) insert(t *testing.T, project string) objects {
	t.Helper()
	o := newObjects()
	names := strings.NewReplacer(
		"$project", project, "$third", thirdProject, "$user", matrixUser, "$order", o[exampleOrder],
		"$instance", o[exampleInstance], "$server", o[exampleServer], "$connection", o[exampleConnection],
		"$callback", o[exampleCallback], "$delivery", o[exampleDelivery], "$action", o[exampleAction],
		"$received", o[exampleRequest], "$sent", o[sentRequest],
		"$template", o[exampleTemplate], "$managed", o[exampleManaged],
	)
	rows := []string{names.Replace(matrixRows)}
	for _, n := range nouns {
		rows = append(rows, names.Replace(strings.ReplaceAll(n.row, "$id", o[n.example])))
	}
	if _, err := m.pool.Exec(context.Background(), strings.Join(rows, ";\n")); err != nil {
		t.Fatal(err)
	}
	return o
}

const matrixRows = `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status)
values ('$project', '$order', 'default', '$user', '', '{}', 'done');
insert into connections (project_id, id, domain_id, user_id, kind, delegation_id, acts_as, actions, usable_by, status,
                         expires_at, trust_expires_at, checked_at, next_check_at, flavors)
values ('$project', '$connection', 'default', '$user', 'trust', 't',
        '{"user_id": "$user", "user_name": "ann", "project_id": "$project", "project_name": "p", "roles": ["member"]}',
        '{allocate,connect,start,stop,reboot,shelve,snapshot,deploy,deallocate}', '{}', 'active',
        now() + interval '1 day', now() + interval '2 days', now(),
        now() + interval '1 day', '[{"id": "1", "name": "m1.small", "vcpus": 1, "ram_mb": 512}]');
insert into instances (project_id, id, position, name, state, raw_status, origin, server_id, connection_id)
values ('$project', '$instance', 0, 'x', 'active', 'ACTIVE', 'launched', '$server', '$connection');
insert into events (project_id, subject, seq, type, at, data) values ('$project', '$instance', 1, '` + domain.InstanceEvent + `', now(), '{}');
insert into callbacks (project_id, id, user_id, url, events, status, secret)
values ('$project', '$callback', '$user', 'https://receiver.example.com', '{` + domain.OrderEvent + `}', 'verified', 's');
insert into deliveries (project_id, id, callback_id, stream, seq, event_project, subject, event_seq, status, created_at)
values ('$project', '$delivery', '$callback', 's', 1, '$project', '$instance', 1, 'dead', now());
insert into actions (project_id, id, connection_id, instance_id, user_id, verb)
values ('$project', '$action', '$connection', '$instance', '$user', 'stop');
insert into connection_requests (id, project_id, requester_project_id, requester_user_id, grantee, why, actions, duration,
                                 expires_at)
values ('$received', '$project', '$third', 'u', 'user', 'x', '{start}', '1 hour', now() + interval '1 hour'),
       ('$sent', '$third', '$project', '$user', 'user', 'x', '{start}', '1 hour', now() + interval '1 hour');
insert into flavors (project_id, name, id, domain_id, user_id, kind, provider, spec)
values ('$project', '$template', gen_random_uuid(), 'default', '$user', 'VirtualMachineDeployment', 'nova', '{}');
insert into managed_projects (project_id, domain_id, due_at) values ('$project', 'default', 'infinity')
on conflict do nothing;
with m as (insert into managed (project_id, id, kind, name, user_id, provider, repair, max_revisions, revision, request,
                                status)
           values ('$project', gen_random_uuid(), 'VirtualMachineDeployment', '$managed', '$user', 'nova', 'manual', 10, 1,
                   'create', 'pending')
           returning project_id, id)
insert into managed_revisions (project_id, managed_id, number, spec, user_id)
select project_id, id, 1, '{"count": 0}', 'u' from m;
insert into nodes (name, pool) values ('compute-1.example.com', 'reservable') on conflict do nothing`
