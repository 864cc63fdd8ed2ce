package process_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// delegates are two projects, the first delegating to the second's user, with every function in a process of
// its own.
type delegates struct {
	*fleet
	database     string
	owner, actor *testkit.Project
	tokens       map[*testkit.Project]string
}

// delegateFunctions are the functions that manage connections or act through them.
var delegateFunctions = []string{
	"connections", "launch", "servers", "callbacks", "agents", "run-connections", "poll-instances", "deliver-events",
}

func newDelegates(t *testing.T) *delegates {
	t.Helper()
	d := &delegates{database: testkit.Database(t), owner: testkit.NewProject(t), actor: testkit.NewProject(t)}
	d.tokens = map[*testkit.Project]string{d.owner: d.owner.Token(t), d.actor: d.actor.Token(t)}
	d.fleet = newFleet(t, testkit.Env(t, d.database, nil), delegateFunctions...)
	return d
}

// at is a function's replica with one project as the caller.
func (d *delegates) at(who *testkit.Project, function string) *testkit.Client {
	return d.of(function).As(d.tokens[who])
}

// restart kills every function and starts it again.
func (d *delegates) restart(t *testing.T) {
	t.Helper()
	for _, name := range delegateFunctions {
		d.of(name).Kill()
		d.start(t, name)
	}
}

// delegate has the owner delegate by a trust, for an hour.
func (d *delegates) delegate(t *testing.T, actions, quota string) (id string) {
	t.Helper()
	made := d.at(d.owner, "connections").Post(t, "/v1/connections", fmt.Sprintf(
		`{"kind": "trust", "roles": ["member"], "actions": %s, "quota": %s, "usable_by": [%q], "expires_at": %q}`,
		actions, quota, d.actor.UserID, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	if made.Status != http.StatusCreated {
		t.Fatalf("%d %s", made.Status, made.Body)
	}
	var c struct{ ID string }
	made.JSON(t, &c)
	return c.ID
}

// allocate has the actor order servers through a connection.
func (d *delegates) allocate(t *testing.T, connection, rest string) testkit.Answer {
	t.Helper()
	s := testkit.Sandbox(t)
	return d.at(d.actor, "launch").Post(t, "/v1/launch", fmt.Sprintf(
		`{"connection_id": %q, "name": "agent", "flavor": %q, "image": %q, "networks": [%q]%s}`, connection, s.Flavor, s.Image, s.Network, rest))
}

type ordered struct {
	ID, Status string
	Instances  []struct {
		ID, State string
		ServerID  string `json:"server_id"`
		Error     *struct{ Code, Detail string }
	}
}

// allocated waits until an order is settled.
func (d *delegates) allocated(t *testing.T, connection string, answer testkit.Answer) ordered {
	t.Helper()
	if answer.Status != http.StatusAccepted {
		t.Fatalf("%d %s", answer.Status, answer.Body)
	}
	var o ordered
	answer.JSON(t, &o)
	path := "/v1/launch/" + o.ID + "?connection_id=" + connection
	testkit.Eventually(t, 3*time.Minute, "the order is settled", func() bool {
		o = ordered{}
		d.at(d.actor, "launch").Get(t, path).JSON(t, &o)
		if o.Status == "running" {
			d.tick(t)
		}
		return o.Status != "running"
	})
	return o
}

// tick is what the clock does when something is due.
func (d *delegates) tick(t *testing.T) {
	t.Helper()
	time.Sleep(time.Second)
	_, _ = d.of("run-connections").TryTick(t, "run-connections")
}

// action has the actor do something to an instance through the connection, and waits for how it ends.
func (d *delegates) action(t *testing.T, connection, instance, body string) (status string) {
	t.Helper()
	var in map[string]any
	if err := json.Unmarshal([]byte(body), &in); err != nil {
		t.Fatal(err)
	}
	in["connection_id"] = connection
	whole, _ := json.Marshal(in)
	requested := d.at(d.actor, "servers").Post(t, "/v1/servers/"+instance+"/actions", string(whole))
	return d.ended(t, connection, requested)
}

func (d *delegates) ended(t *testing.T, connection string, requested testkit.Answer) (status string) {
	t.Helper()
	if requested.Status != http.StatusAccepted {
		t.Fatalf("%d %s", requested.Status, requested.Body)
	}
	var a struct {
		ActionID string `json:"action_id"`
	}
	requested.JSON(t, &a)
	testkit.Eventually(t, 3*time.Minute, "the action has ended", func() bool {
		var shown struct {
			Status string
			Error  any
		}
		d.at(d.actor, "servers").Get(t, "/v1/servers/actions/"+a.ActionID+"?connection_id="+connection).JSON(t, &shown)
		if status = shown.Status; status == "failed" {
			t.Logf("it failed: %v", shown.Error)
		}
		if status == "running" {
			d.tick(t)
		}
		return status != "running"
	})
	return status
}

// TestLongLifeOfAConnection: allocate, deploy, start, stop, deploy again, disconnect; allocate, deallocate; every
// process is killed in between, and each step is looked at in Nova.
func TestLongLifeOfAConnection(t *testing.T) {
	t.Parallel()
	d := newDelegates(t)
	connection := d.delegate(t, `["allocate", "deploy", "start", "stop", "deallocate"]`,
		`{"instances": 2, "ram_mb": 100000}`)
	seen := testkit.NewSDKReceiver(t)
	if a := d.at(d.actor, "callbacks").Post(t, "/v1/callbacks",
		fmt.Sprintf(`{"url": %q, "connection_id": %q}`, seen.URL, connection)); a.Status != http.StatusCreated {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	order := d.allocated(t, connection, d.allocate(t, connection, `, "start": false, "metadata": {"pool": "a"}`))
	one := order.Instances[0]
	d.inNova(t, one.ServerID, "SHUTOFF", "")
	d.restart(t)

	deploy := func(tag string) string {
		return fmt.Sprintf(`{"action": "deploy", "image": "registry.example.com/agent:%s", "env": {"SECRET": "%s"}, "join_token": "%s",
			"registry": {"username": "robot", "password": "%s"}, "confirm_rebuild": true}`, tag, testkit.Canary("env-"+uuid.NewString()),
			testkit.Canary("join-"+uuid.NewString()), testkit.Canary("registry-"+uuid.NewString()))
	}
	steps := []struct{ body, status, image string }{
		{deploy("1.0"), "ACTIVE", "registry.example.com/agent:1.0"},
		{`{"action": "start"}`, "ACTIVE", "registry.example.com/agent:1.0"},
		{`{"action": "stop"}`, "SHUTOFF", "registry.example.com/agent:1.0"},
		{deploy("1.1"), "ACTIVE", "registry.example.com/agent:1.1"},
	}
	for _, step := range steps {
		if status := d.action(t, connection, one.ID, step.body); status != "done" {
			t.Fatalf("%.60s: %s", step.body, status)
		}
		d.inNova(t, one.ServerID, step.status, step.image)
		d.restart(t)
	}
	d.ready(t, one.ServerID)
	d.reuse(t, connection, one.ID)
	d.leave(t, connection, one.ID, one.ServerID)
	// The receiver heard of it all, in order, and knows what the last of the instance's events is.
	testkit.Eventually(t, time.Minute, "the last event", func() bool {
		for _, e := range seen.Events() {
			if e.Subject == one.ID && strings.Contains(strings.ReplaceAll(e.Data, " ", ""), `"disconnected":true`) {
				return true
			}
		}
		d.of("deliver-events").Tick(t, "deliver-events")
		return false
	})
	seen.InOrder(t)
	if !slices.ContainsFunc(seen.Events(), func(e testkit.Received) bool {
		return e.Type == "cloudfn.agent.ready.v1" && e.Subject == one.ID
	}) {
		t.Error("no event says that the agent is ready")
	}
}

// ready fetches the bundle as a server's agent would, and then says ready twice: the second time is refused.
func (d *delegates) ready(t *testing.T, server string) {
	t.Helper()
	deployment, token, _ := testkit.AgentParameters(t, server)
	if a := d.of("agents").Get(t, "/v1/agents/"+deployment+"/bundle", "Authorization",
		"Bearer "+token); a.Status != http.StatusOK {
		t.Errorf("the bundle: %d %s", a.Status, a.Body)
	}
	for _, want := range []int{http.StatusNoContent, http.StatusNotFound} {
		a := d.of("agents").Do(t, http.MethodPost, "/v1/agents/"+deployment+"/ready", "", "Authorization",
			"Bearer "+token)
		if a.Status != want {
			t.Errorf("got %d %s, want %d", a.Status, a.Body, want)
		}
	}
}

// inNova checks that the owner's server comes to a status, and which image its user_data names.
func (d *delegates) inNova(t *testing.T, server, status, image string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "the server is "+status, func() bool {
		for _, s := range d.owner.Servers(t) {
			if s.ID == server {
				return s.Status == status
			}
		}
		return false
	})
	if image == "" {
		return
	}
	if _, _, named := testkit.AgentParameters(t, server); named != image {
		t.Errorf("the server's user_data names %s, want %s", named, image)
	}
}

// reuse checks that an idle instance whose metadata match is taken before a new one is made, and one that does not
// match is not.
func (d *delegates) reuse(t *testing.T, connection, idle string) {
	t.Helper()
	if status := d.action(t, connection, idle, `{"action": "stop"}`); status != "done" {
		t.Fatal(status)
	}
	testkit.Eventually(t, time.Minute, "it is known to be stopped", func() bool {
		var s struct{ Instance struct{ State string } }
		d.at(d.actor, "servers").Get(t, "/v1/servers/"+idle+"?connection_id="+connection).JSON(t, &s)
		if s.Instance.State != "stopped" {
			d.of("poll-instances").Tick(t, "poll-instances")
		}
		return s.Instance.State == "stopped"
	})
	again := d.allocated(t, connection, d.allocate(t, connection, `, "reuse": true, "metadata": {"pool": "a"}`))
	if len(again.Instances) != 1 || again.Instances[0].ID != idle || again.Status != "done" ||
		len(d.owner.Servers(t)) != 1 {
		t.Errorf("got %+v, with %d servers", again, len(d.owner.Servers(t)))
	}
	d.inNova(t, again.Instances[0].ServerID, "ACTIVE", "")
}

// leave lets one instance go, and allocates and deallocates another.
func (d *delegates) leave(t *testing.T, connection, id, server string) {
	t.Helper()
	servers := func() *testkit.Client { return d.at(d.actor, "servers") }
	if a := servers().Do(t, http.MethodDelete, "/v1/servers/"+id+"?mode=disconnect&connection_id="+connection,
		""); a.Status != http.StatusNoContent {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	d.inNova(t, server, "ACTIVE", "")
	if a := servers().Get(t, "/v1/servers/"+id+"?connection_id="+connection); a.Status != http.StatusNotFound {
		t.Errorf("the disconnected server: %d %s", a.Status, a.Body)
	}
	d.restart(t)
	two := d.allocated(t, connection, d.allocate(t, connection, "")).Instances[0]
	d.restart(t)
	gone := servers().Do(t, http.MethodDelete, "/v1/servers/"+two.ID+"?connection_id="+connection, "")
	if status := d.ended(t, connection, gone); status != "done" {
		t.Fatal(status)
	}
	if left := len(d.owner.Servers(t)); left != 1 || testkit.Ports(t, two.ServerID) != 0 {
		t.Errorf("%d servers, %d ports of the deleted one", left, testkit.Ports(t, two.ServerID))
	}
}

// TestLongTheTrusteeNeedsNoRole: run-connections works with an account that may do nothing of its own, as on Knative.
func TestLongTheTrusteeNeedsNoRole(t *testing.T) {
	t.Parallel()
	owner, actor, facts := testkit.NewProject(t), testkit.NewProject(t), testkit.Sandbox(t)
	_, line := testkit.Run(t, map[string]string{
		"OS_CLIENT_CONFIG_FILE": testkit.CloudsYAML(t), "OS_CLOUD": "delegate",
	}, "trustee")
	env := testkit.Env(t, testkit.Database(t), map[string]string{
		"OS_CLOUD": "delegate", "TRUSTEE_USER_ID": strings.TrimSpace(strings.TrimPrefix(line, "TRUSTEE_USER_ID=")),
	})
	functions := newFleet(t, env, "connections", "launch", "run-connections", "poll-instances", "deliver-events")
	made := functions.of("connections").As(owner.Token(t)).Post(t, "/v1/connections", fmt.Sprintf(
		`{"kind": "trust", "actions": ["allocate", "start"], "usable_by": [%q], "expires_at": %q}`,
		actor.ID, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	if made.Status != 201 {
		t.Fatalf("%d %s", made.Status, made.Body)
	}
	var connection struct{ ID string }
	made.JSON(t, &connection)
	ordered := functions.of("launch").As(actor.Token(t)).Post(t, "/v1/launch", fmt.Sprintf(
		`{"connection_id": %q, "name": "delegated", "flavor": %q, "image": %q, "networks": [%q]}`, connection.ID, facts.Flavor, facts.Image, facts.Network))
	if ordered.Status != 202 {
		t.Fatalf("%d %s", ordered.Status, ordered.Body)
	}
	testkit.Eventually(t, 3*time.Minute, "the server is there", func() bool { return len(owner.Servers(t)) == 1 })
	gone := functions.of("connections").As(owner.Token(t)).Do(t, "DELETE", "/v1/connections/"+connection.ID, "")
	if left := owner.Trusts(t); gone.Status != 204 || len(left) != 0 {
		t.Errorf("%d %s, and Keystone still has the trusts %v", gone.Status, gone.Body, left)
	}
}
