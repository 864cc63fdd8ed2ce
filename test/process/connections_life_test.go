package process_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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

// inNova sees that the owner's server comes to a status, and which image its user_data names.
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

// reuse sees that an idle instance whose metadata match is taken before a new one is made, and one that does not match
// is not.
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
		t.Errorf("%d servers, %d ports of the one that is gone", left, testkit.Ports(t, two.ServerID))
	}
}
