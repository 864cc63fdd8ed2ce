package contract_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// What the document's examples name.
const (
	exampleOrder      = "0f8fad5b-d9cb-469f-a165-70867728950e"
	exampleInstance   = "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"
	exampleServer     = "4f8052c0-49f2-4b75-a508-5c4454e37731"
	exampleSecond     = "d32225fb-a29c-4db1-9c17-2657322bda1f"
	exampleConnection = "019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"
	exampleCallback   = "019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22"
	exampleDelivery   = "019b7c5e-5d40-7e66-9f2d-4b8c3e2a1c33"
	exampleDeployment = "019b7c5e-6e50-7f77-a03e-5c9d4f3b2d44"
	exampleAction     = "019b7c5e-9f00-7a11-8d22-5b0e6c7d8e9f"
	exampleRequest    = "019b7c5e-4c11-7d02-9a3e-5b8f0e2d7c46"
)

// story is one project's life, in which every operation succeeds once, and fails where it must.
type story struct {
	*examples
	project *testkit.Project
	client  *testkit.Client
	conn    *pgx.Conn
	names   []string // what there is in the place of what the examples name, in pairs
}

func (e *examples) succeed(t *testing.T) {
	t.Parallel()
	project, database, facts := testkit.BorrowProject(t), testkit.Database(t), testkit.Sandbox(t)
	client := spawn(t, database, map[string]string{"ALLOWED_PROJECTS": project.ID}).As(project.Token(t))
	s := &story{examples: e, project: project, client: client, conn: testkit.Connect(t, database), names: []string{
		`"m1.tiny"`, fmt.Sprintf("%q", facts.Flavor), `"m1.small"`, fmt.Sprintf("%q", facts.Flavor), `"cirros"`,
		fmt.Sprintf("%q", facts.Image),
		`"private"`, fmt.Sprintf("%q", facts.Network),
	}}
	for id, o := range e.operations { // an event waits for what is due soon: nothing is yet
		if isEvent(o) {
			s.ok(t, id, 204, variant{})
		}
	}
	for _, part := range []func(*testing.T){
		s.process, s.callbacks, s.launch, s.servers, s.consent, s.connections, s.others, s.managedStory,
		s.nodeStory, s.keyed, s.console, s.events,
	} {
		part(t)
	}
}

// others are the nouns that have a file of their own.
func (s *story) others(t *testing.T) {
	for _, n := range nouns {
		n.story(s, t)
	}
}

// events checks all stored events: each has the fields of its Go type, from which the document is made, and values as
// the document says. Each type must have come.
func (s *story) events(t *testing.T) {
	doc, missing := document(t), map[string]domain.EventType{}
	for _, e := range domain.Events() {
		missing[e.Type] = e
	}
	types := maps.Clone(missing)
	rows, _ := s.conn.Query(t.Context(), "select type, data from events")
	var kind string
	var data []byte
	if _, err := pgx.ForEachRow(rows, []any{&kind, &data}, func() error {
		delete(missing, kind)
		if err := sameFields(types[kind], data); err != nil {
			t.Errorf("%s %s: %v", kind, data, err)
		}
		if types[kind].SinkOnly { // the document has only what callbacks get
			return nil
		}
		var values any
		schema := doc.Webhooks[kind].Post.RequestBody.Value.Content["application/json"].Schema.Value
		if err := json.Unmarshal(data, &values); err != nil || doc.ValidateSchemaJSON(schema, values) != nil {
			t.Errorf("%s %s: %v, %v", kind, data, err, doc.ValidateSchemaJSON(schema, values))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for kind, e := range missing {
		if !e.SinkOnly {
			t.Errorf("no event %s came", kind)
		}
	}
}

// sameFields fails unless data has the fields that its Go type makes of it: none more, and none less.
func sameFields(e domain.EventType, data []byte) error {
	if e.Data == nil {
		return errors.New("domain.Events has no such type")
	}
	value := reflect.New(reflect.TypeOf(e.Data)).Interface()
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(value); err != nil {
		return err
	}
	again, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if want, got := fieldNames(again), fieldNames(data); !slices.Equal(want, got) {
		return fmt.Errorf("its fields are %s, want %s", got, want)
	}
	return nil
}

func fieldNames(object []byte) []string {
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal(object, &fields)
	return slices.Sorted(maps.Keys(fields))
}

// is maps an id of the examples to the real one.
func (s *story) is(example, found string) { s.names = append([]string{example, found}, s.names...) }

// ok sends an example for what there is.
func (s *story) ok(t *testing.T, operation string, status int, a variant) testkit.Answer {
	t.Helper()
	a.where, a.real = "a daemon and the sandbox", strings.NewReplacer(s.names...)
	if a.client == nil {
		a.client = s.client
	}
	return s.send(t, operation, status, a)
}

// id sends an example, and gives the id of what it made.
func (s *story) id(t *testing.T, operation string, status int, a variant) string {
	t.Helper()
	var made struct {
		ID       string
		ActionID string `json:"action_id"`
	}
	s.ok(t, operation, status, a).JSON(t, &made)
	if made.ActionID != "" {
		return made.ActionID
	}
	return made.ID
}

func (s *story) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (s *story) process(t *testing.T) {
	for _, operation := range []string{
		"getStatus", "getDescription", "getReference", "getReferenceFile", "getHealth", "listResources",
		"suggestAccessRules",
	} {
		s.ok(t, operation, 200, variant{})
	}
	s.ok(t, "listResources", 200, variant{query: []string{"kinds"}})
	s.ok(t, "suggestAccessRules", 200, variant{query: []string{"actions"}})
	s.ok(t, "getStats", 200, variant{query: []string{"hours=3", "scope"}})
	for _, kind := range []string{"image/svg+xml", "text/html"} {
		s.ok(t, "getStats", 200, variant{header: []string{"Accept", kind}})
	}
	s.ok(t, "listRequests", 200, variant{query: []string{"limit=2", "scope", "since"}})
	s.ok(t, "listRequests", 200, variant{query: []string{"acted_through"}})
	for _, kind := range []string{"text/csv", "application/x-ndjson"} {
		s.ok(t, "listRequests", 200, variant{header: []string{"Accept", kind}})
	}
}

func (s *story) callbacks(t *testing.T) {
	s.is(exampleCallback, s.id(t, "createCallback", 201, variant{example: "project"}))
	s.ok(t, "getCallback", 200, variant{})
	s.ok(t, "listCallbacks", 200, variant{query: []string{"limit=1"}})
	for _, example := range []string{"move", "suspend"} {
		s.ok(t, "changeCallback", 200, variant{example: example})
	}
	for _, example := range []string{"given", "overlap"} {
		s.ok(t, "rotateCallbackSecret", 200, variant{example: example})
	}
	for range 2 {
		s.ok(t, "rotateCallbackSecret", 200, variant{example: "overlap"})
	}
	s.ok(t, "rotateCallbackSecret", 409, variant{example: "overlap"})
	delivery := s.id(t, "testCallback", 202, variant{})
	s.is(exampleDelivery, delivery)
	s.ok(t, "redeliver", 409, variant{})
	s.exec(t, "update deliveries set status = 'dead' where id = $1", delivery)
	s.ok(t, "listDeliveries", 200, variant{query: []string{"status", "limit=5"}})
	s.ok(t, "getDelivery", 200, variant{})
	s.ok(t, "redeliver", 202, variant{})
	s.exec(t, "update callbacks set status = 'gone'")
	s.ok(t, "getCallback", 200, variant{}) // which nothing changes meanwhile
	s.ok(t, "listCallbacks", 200, variant{})
	s.ok(t, "testCallback", 409, variant{})
	s.ok(t, "changeCallback", 409, variant{example: "suspend"})
	s.exec(t, `insert into callbacks (project_id, id, user_id, url, events, status, secret, of_project)
		select project_id, gen_random_uuid(), user_id, url, events, 'pending', secret, of_project from callbacks, generate_series(1, 100)`)
	s.ok(t, "createCallback", 409, variant{example: "project"})
	s.ok(t, "deleteCallback", 204, variant{})
	s.exec(t, "delete from callbacks")
}

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

func (s *story) launch(t *testing.T) {
	id := uuid.NewString()
	var order struct {
		Status    string
		Instances []struct {
			ID       string
			ServerID string `json:"server_id"`
		}
	}
	s.ok(t, "launch", 202, variant{example: "one", set: map[string]any{"id": id}}).JSON(t, &order)
	s.is(exampleOrder, id)
	if _, err := s.project.Session(t).ImportKeyPair(t.Context(), "cloudfn-"+id, publicKey); err != nil {
		t.Fatal(err)
	}
	s.ok(t, "createKeyPair", 201, variant{example: "generated"})
	s.ok(t, "createKeyPair", 409, variant{example: "imported"})
	s.ok(t, "deleteKeyPair", 204, variant{})
	s.ok(t, "deleteKeyPair", 404, variant{})
	s.ok(t, "launch", 200, variant{example: "one", set: map[string]any{"id": id}})
	s.ok(t, "launch", 409, variant{example: "several"}) // it has the same id
	for _, example := range []string{"one", "options", "different"} {
		s.ok(t, "launch", 200, variant{example: example, query: []string{"dry_run=true"}})
	}
	s.ok(t, "launch", 422, variant{
		example: "one", set: map[string]any{"flavor": nil, "min": map[string]int{"vcpus": 100000}},
	})
	testkit.Eventually(t, 4*time.Minute, "the order is settled", func() bool {
		s.ok(t, "getOrder", 200, variant{}).JSON(t, &order)
		return order.Status != "running"
	})
	s.ok(t, "listOrders", 200, variant{query: []string{"status", "limit=10"}})
	s.is(exampleServer, order.Instances[0].ServerID)
	s.is(exampleInstance, order.Instances[0].ID)
	copied := s.project.Create(t, "copied", order.Instances[0].ID, "cloudfn-order:"+id)
	testkit.Eventually(t, time.Minute, "an event about a server with copied tags comes", func() bool {
		s.ok(t, "getOrder", 200, variant{})
		return testkit.Scalar[int](t, s.conn, "select count(*)::int from unexpected_servers") == 1
	})
	s.project.Drop(t, copied)
	s.ok(t, "getServer", 200, variant{})
	s.ok(t, "getServerHistory", 200, variant{query: []string{"limit=2"}})
	s.ok(t, "listServers", 200, variant{query: []string{"status", "name", "tracked", "limit=10"}})
}

// servers are the one that was launched, and two that were there before.
func (s *story) servers(t *testing.T) {
	launched := strings.NewReplacer(s.names...)
	found := s.project.Boot(t, "found", 2)
	s.ok(t, "actOnServer", 202, variant{example: "deploy"})
	var deployment, token string
	testkit.Eventually(t, 2*time.Minute, "the server is rebuilt", func() bool {
		deployment, token, _ = testkit.AgentParameters(t, launched.Replace(exampleServer))
		return deployment != ""
	})
	s.is(exampleDeployment, deployment)
	agent := variant{client: s.client.As(""), header: []string{"Authorization", "Bearer " + token}}
	s.ok(t, "getAgentBundle", 200, agent)
	s.ok(t, "agentReady", 204, agent)

	s.is(exampleServer, found[0].ID)
	s.consoles(t, found[0].ID)
	s.ok(t, "connectServer", 409, variant{example: "own", set: map[string]any{"id": launched.Replace(exampleInstance)}})
	s.ok(t, "connectServer", 201, variant{example: "own"})
	s.ok(t, "connectServer", 200, variant{example: "own"})
	s.ok(t, "changeServer", 409, variant{example: "reusable"})
	s.ok(t, "changeServer", 200, variant{example: "labels"})
	s.ok(t, "changeServer", 200, variant{example: "name"})
	s.ok(t, "actOnServer", 409, variant{example: "reboot", set: map[string]any{"action": "delete", "hard": nil}})
	s.ok(t, "deleteServer", 409, variant{})
	s.ok(t, "deleteServer", 200, variant{query: []string{"dry_run=true", "force=true"}})
	s.is(exampleSecond, found[1].ID)
	s.ok(t, "actOnServers", 202, variant{example: "stop"})
	s.project.Await(t, found[0].ID, "SHUTOFF")
	s.project.Await(t, found[1].ID, "SHUTOFF")
	s.ok(t, "actOnServers", 200, variant{example: "stop"})
	s.ok(t, "actOnServer", 200, variant{example: "reboot", set: map[string]any{"action": "stop", "hard": nil}})
	s.ok(t, "deleteServer", 204, variant{query: []string{"force=true"}})
	s.is(exampleServer, found[1].ID)
}

// TestExamples sends an example of every operation for every status that openapi.yaml documents, and prints the table.
func TestExamples(t *testing.T) {
	t.Parallel()
	testkit.CloudsYAML(t) // without the sandbox most examples cannot be sent, and the table would say so
	e := newExamples(t)
	t.Run("sent", func(t *testing.T) {
		t.Run("succeed", e.succeed)
		t.Run("request", e.refusedByTheRequest)
		t.Run("operator", e.refusedByTheOperator)
		t.Run("keystone", e.refusedByKeystone)
		t.Run("services", e.refusedByServices)
		t.Run("postgres", e.refusedByPostgres)
	})
	var table []string
	for id, o := range e.operations {
		for status := range o.Responses.Map() {
			pair := id + " " + status
			where := e.sent[pair]
			switch {
			case where == "" && never[pair] == "":
				t.Errorf("%s is documented, and no example gave it", pair)
				where = "MISSING"
			case where != "" && never[pair] != "":
				t.Errorf("%s was sent, and is listed as one that is not", pair)
			case where == "":
				where = "not sent: " + never[pair]
			}
			table = append(table, fmt.Sprintf("%-22s %s  %s", id, status, where))
		}
	}
	slices.Sort(table)
	t.Logf("%d operations\n%s", len(e.operations), strings.Join(table, "\n"))
}

// consoles are those of a server of the sandbox, which has logs only, and of a Nova that has only remote consoles.
func (s *story) consoles(t *testing.T, server string) {
	t.Helper()
	s.ok(t, "getServerConsole", 200, variant{query: []string{"lines=2"}})
	s.ok(t, "openServerConsole", 409, variant{})
	const opened = `{"remote_console": {"protocol": "vnc", "type": "novnc", "url": "https://console.example.com/?token=t"}}`
	nova := testkit.Instead(t, testkit.Endpoint(t, "compute"), func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, server+"/") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/remote-consoles") {
			_, _ = w.Write([]byte(opened))
			return true
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"itemNotFound": {"message": "Guest does not have a console available."}}`))
		return true
	})
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo")
	other := spawn(t, testkit.Database(t), env).As(s.project.Token(t))
	s.ok(t, "openServerConsole", 200, variant{client: other})
	s.ok(t, "getServerConsole", 409, variant{client: other})
}

// keyed sends keys that belong to other requests, and one whose request is in progress.
func (s *story) keyed(t *testing.T) {
	taken, busy := []string{"Idempotency-Key", uuid.NewString()}, []string{"Idempotency-Key", uuid.NewString()}
	first := s.ok(t, "createCallback", 201, variant{example: "project", header: taken})
	again := s.ok(t, "createCallback", 201, variant{example: "project", header: taken})
	if string(first.Body) != string(again.Body) || again.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("got %s, and then %s %v", first.Body, again.Body, again.Header)
	}
	count := 0
	for id, o := range s.operations {
		if slices.ContainsFunc(o.params, func(p *openapi3.Parameter) bool { return p.Name == taken[0] }) {
			s.ok(t, id, 422, variant{header: taken})
			count++
		}
	}
	if count < 10 {
		t.Errorf("%d operations take a key", count)
	}
	none := fmt.Sprintf(`{"action": "start", "ids": [%q]}`, uuid.NewString())
	s.ok(t, "actOnServers", 200, variant{body: none, header: busy})
	testkit.LeaveRequests(t, s.conn, testkit.AtWork)
	s.ok(t, "actOnServers", 409, variant{body: none, header: busy})
}

// Why an answer is never sent.
const (
	onlyByMistake = "it reads nothing that could be broken: only a mistake of the program's gives it " +
		"(shared/httpx shows the answer to one)"
	onlyByFlood = "its address alone is limited, before any route is looked at (shared/httpx TestLimits)"
)

// never lists documented answers that the tests do not provoke, and why.
var never = map[string]string{
	"listResources 500":           onlyByMistake,
	"createKeyPair 500":           onlyByMistake,
	"deleteKeyPair 500":           onlyByMistake,
	"listVolumes 500":             onlyByMistake,
	"createVolume 500":            onlyByMistake,
	"getVolume 500":               onlyByMistake,
	"deleteVolume 500":            onlyByMistake,
	"suggestAccessRules 500":      onlyByMistake,
	"listSecurityGroups 500":      onlyByMistake,
	"createSecurityGroup 500":     onlyByMistake,
	"getSecurityGroup 500":        onlyByMistake,
	"deleteSecurityGroup 500":     onlyByMistake,
	"addSecurityGroupRule 500":    onlyByMistake,
	"removeSecurityGroupRule 500": onlyByMistake,
	"detachVolume 409":            "since the story of leases its member is an admin, whom no lock of a server holds",
	"detachInterface 409":         "the same",
	"removeSecurityGroup 409":     "five others would have to change the port meanwhile",
	"findFreeHosts 304":           "its first slot begins when it is requested",
	"getStatus 500":               onlyByMistake,
	"listProviders 500":           onlyByMistake,
	"getDescription 500":          onlyByMistake,
	"getReference 500":            onlyByMistake,
	"getReferenceFile 500":        onlyByMistake,
	"openConsole 500":             onlyByMistake,
	"getConsole 500":              onlyByMistake,
	"getConsoleFile 500":          onlyByMistake,
	"getAgentBundle 429":          onlyByFlood,
	"agentReady 429":              onlyByFlood,
	"reportNode 429":              onlyByFlood,
	"getSession 429":              onlyByFlood,
	"listSessionProjects 429":     onlyByFlood,
	"listSessionProjects 502":     "a Keystone that answers nonsense has made no session (shared/openstack)",
	"signOut 429":                 onlyByFlood,
	"switchProject 429":           onlyByFlood,
	"switchProject 502":           "the same",
	"getDescription 429":          onlyByFlood,
	"getReference 429":            onlyByFlood,
	"getReferenceFile 429":        onlyByFlood,
	"listFloatingIPs 500":         onlyByMistake,
	"createFloatingIP 500":        onlyByMistake,
	"getFloatingIP 500":           onlyByMistake,
	"deleteFloatingIP 500":        onlyByMistake,
	"detachFloatingIP 409":        "only a change between two calls to Neutron gives it (shared/openstack)",
}
