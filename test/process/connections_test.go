package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	d.fleet = newFleet(t, testkit.Env(t, d.database, map[string]string{"POLL_PAUSE": "500ms"}), delegateFunctions...)
	return d
}

// at is a function's replica with one project as the caller.
func (d *delegates) at(who *testkit.Project, function string) *testkit.Client {
	return d.of(function).As(d.tokens[who])
}

// restart kills every function and starts it anew.
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

// TestLongDelegation: a user delegates to another project's for an hour, with a quota of 3 instances and without the
// right to delete.
func TestLongDelegation(t *testing.T) {
	t.Parallel()
	d := newDelegates(t)
	connection := d.delegate(t, `["allocate", "deploy", "start", "stop"]`, `{"instances": 3}`)

	order := d.allocated(t, connection, d.allocate(t, connection, `, "count": 3`))
	if order.Status != "done" || len(d.owner.Servers(t)) != 3 || len(d.actor.Servers(t)) != 0 {
		t.Fatalf("got %+v, and %d servers of the owner's", order, len(d.owner.Servers(t)))
	}
	fourth := d.allocate(t, connection, "")
	if fourth.Status != http.StatusForbidden || !strings.Contains(string(fourth.Body), "quota_exceeded") ||
		!strings.Contains(string(fourth.Body), "quota of instances is 3: 3 are used, and this takes 1 more") {
		t.Errorf("the fourth: %d %s", fourth.Status, fourth.Body)
	}
	refused := d.at(d.actor, "servers").Do(t, http.MethodDelete,
		"/v1/servers/"+order.Instances[0].ID+"?connection_id="+connection, "")
	if refused.Status != http.StatusForbidden || !strings.Contains(string(refused.Body),
		"does not permit to deallocate, only to allocate, deploy, start, stop") {
		t.Errorf("a delete: %d %s", refused.Status, refused.Body)
	}
	// Nobody else may act through it, or learn that it is there.
	stranger := testkit.NewProject(t)
	if a := d.of("servers").As(stranger.Token(t)).Get(t,
		"/v1/servers?connection_id="+connection); a.Status != http.StatusNotFound {
		t.Errorf("a stranger's look: %d %s", a.Status, a.Body)
	}
	d.expire(t, connection, order.Instances[0].ID)
}

// expire sees that everything is refused once the connection's time is over, and that nothing is left of it in
// Keystone.
func (d *delegates) expire(t *testing.T, connection, instance string) {
	t.Helper()
	conn := testkit.Connect(t, d.database)
	trust := testkit.Scalar[string](t, conn, "select delegation_id from connections where id = $1", connection)
	if !d.trusted(t, trust) {
		t.Fatal("the trust is not in Keystone")
	}
	// A test cannot wait for an hour, so the connection's end is moved. The trust's own is an hour away.
	if _, err := conn.Exec(context.Background(), "update connections set expires_at = now() where id = $1",
		connection); err != nil {
		t.Fatal(err)
	}
	before := len(d.owner.Servers(t))
	for what, a := range map[string]testkit.Answer{
		"an order": d.allocate(t, connection, ""),
		"a stop": d.at(d.actor, "servers").Post(t, "/v1/servers/"+instance+"/actions",
			fmt.Sprintf(`{"action": "stop", "connection_id": %q}`, connection)),
	} {
		if a.Status != http.StatusForbidden {
			t.Errorf("%s after the end: %d %s", what, a.Status, a.Body)
		}
	}
	d.of("run-connections").Tick(t, "run-connections")
	testkit.Eventually(t, time.Minute, "the trust is gone from Keystone", func() bool { return !d.trusted(t, trust) })
	var shown struct{ Status string }
	d.at(d.owner, "connections").Get(t, "/v1/connections/"+connection).JSON(t, &shown)
	if shown.Status != "expired" || len(d.owner.Servers(t)) != before {
		t.Errorf("the connection is %s, and there are %d servers, of %d", shown.Status, len(d.owner.Servers(t)), before)
	}
}

// trusted reports whether the owner's trusts in Keystone have this one.
func (d *delegates) trusted(t *testing.T, trust string) bool {
	t.Helper()
	return slices.Contains(d.owner.Trusts(t), trust)
}

// TestLongTwoOrdersOneQuota: two orders of 2 at once never pass a quota of 3 together.
func TestLongTwoOrdersOneQuota(t *testing.T) {
	t.Parallel()
	d := newDelegates(t)
	connection := d.delegate(t, `["allocate", "start", "deallocate"]`, `{"instances": 3}`)
	var both sync.WaitGroup
	answers := make([]testkit.Answer, 2)
	for n := range answers {
		both.Go(func() { answers[n] = d.allocate(t, connection, `, "count": 2`) })
	}
	both.Wait()
	taken, refused := answers[0], answers[1]
	if taken.Status != http.StatusAccepted {
		taken, refused = refused, taken
	}
	if refused.Status != http.StatusForbidden || !strings.Contains(string(refused.Body), "quota_exceeded") {
		t.Fatalf("got %d %s", refused.Status, refused.Body)
	}
	if order := d.allocated(t, connection, taken); order.Status != "done" || len(d.owner.Servers(t)) != 2 {
		t.Errorf("got %+v, and %d servers", order, len(d.owner.Servers(t)))
	}
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
	asked := d.at(d.actor, "servers").Post(t, "/v1/servers/"+instance+"/actions", string(whole))
	return d.ended(t, connection, asked)
}

func (d *delegates) ended(t *testing.T, connection string, asked testkit.Answer) (status string) {
	t.Helper()
	if asked.Status != http.StatusAccepted {
		t.Fatalf("%d %s", asked.Status, asked.Body)
	}
	var a struct {
		ActionID string `json:"action_id"`
	}
	asked.JSON(t, &a)
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
