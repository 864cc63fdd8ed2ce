// Package guest_test boots guests: servers of the sandbox's libvirt host, by an image that scripts/guest makes.
package guest_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

type object = map[string]any

const agentPort = "7000"

// TestLongGuest boots a server with a key and user data, deploys an agent to it, and stops, starts and reboots it. Then
// a declared pod runs in another guest.
func TestLongGuest(t *testing.T) {
	c := newCloud(t)
	t.Run("agent", func(t *testing.T) {
		c.registry.require("robot:canary-registry")
		id, key := c.launch(t)
		c.awaitConsole(t, id, "user data of "+c.project.Name, 1)
		if got := c.shell(t, c.show(t, id), key, "cat /etc/hostname; whoami"); got != "guest\ndebian\n" {
			t.Errorf("by SSH: %q", got)
		}
		c.deploy(t, id)
		c.power(t, id)
		if a := c.api.Do(t, http.MethodDelete, "/v1/servers/"+id, ""); a.Status != http.StatusNoContent {
			t.Errorf("delete: %d %s", a.Status, a.Body)
		}
	})
	t.Run("pod", func(t *testing.T) {
		c.registry.require("")
		c.pod(t)
	})
}

// deploy rebuilds the server with an agent, which reports that it is ready.
func (c *cloud) deploy(t *testing.T, id string) {
	t.Helper()
	c.act(t, id, text(object{
		"action": "deploy", "image": registryHost + "/agent:1", "command": []string{"one", "two words"},
		"env": object{"PORT": agentPort, "COLOR": "light blue"}, "join_token": "canary-join", "confirm_rebuild": true,
		"registry": object{"username": "robot", "password": "canary-registry"},
	}), "active")
	c.await(t, id, "the agent is ready", func() bool {
		s := c.show(t, id)
		return s.Instance.Agent != nil && s.Instance.Agent.ReadyAt != nil
	})
	c.runs(t, id, agentPort, "one two words", "COLOR=light blue", "JOIN_TOKEN=canary-join",
		"INSTANCE_ID="+c.show(t, id).Instance.ID)
	if n := c.registry.pulls(); n != 1 {
		t.Errorf("the image was pulled %d times", n)
	}
	history := string(c.api.Get(t, "/v1/servers/history/"+id).Body)
	if strings.Count(history, domain.AgentReadyEvent) != 1 {
		t.Errorf("the history is %s", history)
	}
}

// power has the agent's container run again after each start, and after its own end.
func (c *cloud) power(t *testing.T, id string) {
	t.Helper()
	address := c.address(t, c.show(t, id)) + ":" + agentPort
	c.get(address, "/end?status=1")
	c.runs(t, id, agentPort, "one two words")
	c.act(t, id, `{"action": "stop"}`, "stopped")
	if shown := c.get(address, "/"); shown != "" {
		t.Errorf("a stopped server shows %s", shown)
	}
	c.act(t, id, `{"action": "start"}`, "active")
	c.runs(t, id, agentPort, "one two words", "JOIN_TOKEN=canary-join")
	c.act(t, id, `{"action": "reboot", "hard": true}`, "active")
	c.runs(t, id, agentPort, "one two words", "JOIN_TOKEN=canary-join")
	if n := c.registry.pulls(); n != 1 {
		t.Errorf("the image was pulled %d times", n)
	}
}

// pod declares a server with two containers. One has a file of a configmap.
func (c *cloud) pod(t *testing.T) {
	t.Helper()
	c.declare(t, "Configmap/files", object{"data": object{"greeting": "hello from a file"}})
	id := c.declare(t, "Pod/shop", object{
		"flavor": flavor, "image": c.image, "networks": []string{c.network}, "configmaps": []string{"files"},
		"restart": "on_failure",
		"containers": []object{
			{
				"name": "web", "image": registryHost + "/web:1", "args": []string{"--web"}, "env": object{"PORT": "7001"},
				"ports":     []object{{"port": 7001}},
				"mounts":    []object{{"source": "/etc/cloudfn/files", "target": "/etc/files", "read_only": true}},
				"resources": object{"cpus": 0.5, "memory_mb": 64},
			},
			{"name": "side", "image": registryHost + "/side:1", "env": object{"PORT": "7002", "COLOR": "light blue"}},
		},
	})
	c.runs(t, id, "7001", "--web")
	c.runs(t, id, "7002", "COLOR=light blue")
	address := c.address(t, c.show(t, id))
	if got := c.get(address+":7001", "/file?path=/etc/files/greeting"); got != "hello from a file" {
		t.Errorf("the file in the container is %q", got)
	}
	c.get(address+":7002", "/end?status=1") // it is restarted
	c.runs(t, id, "7002", "COLOR=light blue")
	c.get(address+":7001", "/end?status=0") // it is not, until the server boots again
	c.get(address+":7002", "/end?status=0")
	c.ended(t, address)
	c.act(t, id, `{"action": "shelve"}`, "shelved") // its disk becomes an image
	c.act(t, id, `{"action": "unshelve"}`, "active")
	c.runs(t, id, "7001", "--web")
	c.runs(t, id, "7002", "COLOR=light blue")
}

// ended watches the containers of a pod that have ended: for longer than systemd takes to stop the unit and to start it
// again (TimeoutStopSec and RestartSec).
func (c *cloud) ended(t *testing.T, address string) {
	t.Helper()
	for end := time.Now().Add(100 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Second) {
		if c.get(address+":7001", "/") != "" {
			t.Fatal("the containers have ended, and run again")
		}
	}
}

// declare declares a resource, and returns the id of its server, if it has one.
func (c *cloud) declare(t *testing.T, path string, spec object) (id string) {
	t.Helper()
	path = "/v1/managed/" + path
	a := c.api.Do(t, http.MethodPut, path, text(object{"spec": spec}), "Content-Type", "application/json")
	if a.Status != http.StatusCreated {
		t.Fatalf("%s: %d %s", path, a.Status, a.Body)
	}
	start := time.Now()
	for {
		var m struct {
			Status  string
			Members []struct {
				ObjectID string `json:"object_id"`
			}
		}
		a := c.api.Get(t, path)
		if a.JSON(t, &m); m.Status == "ready" {
			t.Logf("%s is ready: after %s", path, time.Since(start).Round(time.Second))
			if len(m.Members) == 1 {
				id = m.Members[0].ObjectID
			}
			return id
		}
		if time.Since(start) > bootTime {
			t.Fatalf("%s is not ready: %s", path, a.Body)
		}
		time.Sleep(time.Second)
	}
}

// launch orders the server by the API, and returns its id and its private key.
func (c *cloud) launch(t *testing.T) (id, key string) {
	t.Helper()
	a := c.api.Post(t, "/v1/launch", text(object{
		"name": "guest", "flavor": flavor, "image": c.image, "networks": []string{c.network}, "generate_key": true,
		"user_data": "#cloud-config\nruncmd: [[sh, -c, 'echo user data of " + c.project.Name + "']]\n",
	}))
	if a.Status != http.StatusAccepted {
		t.Fatalf("launch: %d %s", a.Status, a.Body)
	}
	var order struct {
		PrivateKey string `json:"private_key"`
		Instances  []struct{ ID string }
	}
	a.JSON(t, &order)
	id = order.Instances[0].ID
	c.await(t, id, "the server is active", func() bool {
		a := c.api.Get(t, "/v1/servers/"+id)
		if strings.Contains(string(a.Body), `"error"`) {
			t.Fatalf("%s", a.Body)
		}
		return a.Status == http.StatusOK && strings.Contains(string(a.Body), `"ACTIVE"`)
	})
	return id, order.PrivateKey
}

// runs waits until the container answers at a port of the guest, and holds what it shows against the lines.
func (c *cloud) runs(t *testing.T, id, port string, lines ...string) {
	t.Helper()
	address := c.address(t, c.show(t, id)) + ":" + port
	shown := ""
	c.await(t, id, "the container answers at "+address, func() bool {
		shown = c.get(address, "/")
		return shown != ""
	})
	for _, line := range lines {
		if !strings.Contains("\n"+shown, "\n"+line+"\n") {
			t.Errorf("the container has no %q: %s", line, shown)
		}
	}
}
