package launch

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLaunchByConnection checks that the order is stored in the connection's project, with all that run-connections
// needs and no secret in the clear, and that Nova is not called.
func TestLaunchByConnection(t *testing.T) {
	t.Parallel()
	d := delegated(t, nil)
	id := uuid.NewString()
	request := d.body(t, object{
		"id": id, "user_data_base64": "/yBjYW5hcnktZm9yLWFsbA==", "generate_key": true, "security_groups": []string{"g"},
		"availability_zone": "z", "metadata": object{"role": "web"},
		"callback": object{"url": "https://receiver.example.com/x"},
		"instances": []object{
			{"user_data": "canary-for-one", "networks": []string{}},
			{"name": "other", "flavor": nil, "min": object{"ram_mb": 513}, "image": "another"},
		},
	})
	var order, again Order
	a := d.app.Post(t, "/v1/launch", request)
	a.JSON(t, &order)
	if a.Status != 202 || a.Header.Get("Location") != "/v1/launch/"+id+"?connection_id="+d.ID.String() ||
		domain.Deref(order.ConnectionID) != d.ID || len(order.Instances) != 2 || order.Status != domain.OrderRunning {
		t.Fatalf("got %d %v %s", a.Status, a.Header, a.Body)
	}
	for n, name := range []string{"web-1", "other"} {
		if i := order.Instances[n]; i.Name != name || i.State != domain.InstanceRequested || i.Error != nil ||
			i.KeyName != "cloudfn-"+id {
			t.Errorf("instance %d is %+v", n, i)
		}
	}
	testkit.Eventually(t, 5*time.Second, "both functions are woken",
		func() bool { return d.woken("run-connections") == 1 && d.woken("deliver-events") == 1 })
	key, err := ssh.ParsePrivateKey([]byte(order.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	payload := d.payload(t, order.ID)
	if held, _, _, _, err := ssh.ParseAuthorizedKey([]byte(payload.PublicKey)); err != nil ||
		string(held.Marshal()) != string(key.PublicKey().Marshal()) {
		t.Errorf("the public half is %q: %v", payload.PublicKey, err)
	}
	want := []domain.DelegatedServer{
		{Image: "an image", UserData: "canary-for-one"},
		{Image: "another", Networks: []string{"a network"}, UserData: "\xff canary-for-all"},
	}
	if diff := cmp.Diff(want, payload.Servers); diff != "" {
		t.Error(diff)
	}
	dump := testkit.Dump(t, d.database)
	for _, secret := range []string{
		"canary", hex.EncodeToString([]byte("canary")), order.Callback.Secret,
		strings.Split(order.PrivateKey, "\n")[2],
	} {
		if strings.Contains(dump, secret) {
			t.Error("a secret is in the database")
		}
	}
	d.checkRows(t, order)

	a = d.app.Post(t, "/v1/launch", request)
	if a.JSON(t, &again); a.Status != 200 || again.PrivateKey != "" || again.Callback == nil ||
		again.Callback.ID != order.Callback.ID || again.Callback.Secret != "" ||
		again.Instances[1].ID != order.Instances[1].ID {
		t.Errorf("the same request: %d %s", a.Status, a.Body)
	}
	other := strings.Replace(request, "canary-for-one", "canary-for-uno", 1)
	if a := d.app.Post(t, "/v1/launch", other); a.Status != 409 {
		t.Errorf("with other user_data: got %d %s", a.Status, a.Body)
	}
	if n := len(d.owner.Servers(t)) + len(d.caller.Servers(t)); n != 0 {
		t.Errorf("%d servers were made", n)
	}
}

// TestOrderByConnectionVisibility checks who can read an order that was placed through a connection: callers who may
// act through it, and callers of its project.
func TestOrderByConnectionVisibility(t *testing.T) {
	t.Parallel()
	d := delegated(t, nil)
	id := uuid.NewString()
	request := d.body(t, object{"id": id, "count": 2, "callback": object{"url": "https://receiver.example.com/x"}})
	if a := d.app.Post(t, "/v1/launch", request); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	stranger := d.app.As(testkit.Token(t, "demo"))
	owner := d.app.As(d.owner.Token(t))
	path, through := "/v1/launch/"+id, "?connection_id="+d.ID.String()
	for name, tc := range map[string]struct {
		client *testkit.Client
		path   string
		status int
	}{
		"through the connection":                {d.app, path + through, 200},
		"without naming it":                     {d.app, path, 404},
		"the owner, as his own":                 {owner, path, 200},
		"the owner, through the connection":     {owner, path + through, 200},
		"a stranger":                            {stranger, path + through, 404},
		"through another connection":            {d.app, path + "?connection_id=" + uuid.NewString(), 404},
		"an unknown order":                      {d.app, "/v1/launch/" + uuid.NewString() + through, 404},
		"through a malformed id":                {d.app, path + "?connection_id=7", 400},
		"with an unknown parameter":             {d.app, path + through + "&x=y", 400},
		"the owner, of an order that is absent": {owner, "/v1/launch/" + uuid.NewString(), 404},
	} {
		a := tc.client.Get(t, tc.path)
		if a.Status != tc.status {
			t.Errorf("%s: got %d %s, want %d", name, a.Status, a.Body, tc.status)
		}
		if tc.status != 200 {
			continue
		}
		var order Order
		a.JSON(t, &order)
		if len(order.Instances) != 2 || order.Instances[0].Error != nil || domain.Deref(order.ConnectionID) != d.ID ||
			(order.Callback != nil) != (tc.client == d.app) {
			t.Errorf("%s: %s", name, a.Body)
		}
	}
	// The order's id belongs to the owner's project, but the owner cannot resume it: the user_data is the caller's.
	own := body(t, object{"id": id, "count": 2})
	if a := owner.Post(t, "/v1/launch", own); a.Status != 409 {
		t.Errorf("the owner orders under the same id: got %d %s", a.Status, a.Body)
	}
	taken := uuid.NewString()
	exec(t, d.conn, insertOrder, d.ProjectID, taken, "done", uuid.Nil)
	if a := d.app.Post(t, "/v1/launch", d.body(t, object{"id": taken})); a.Status != 409 {
		t.Errorf("an order of the owner's has the id: got %d %s", a.Status, a.Body)
	}
	if a := d.app.Get(t, "/v1/launch/"+taken+through); a.Status != 404 {
		t.Errorf("an order of the owner's, through the connection: got %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, d.conn, "select count(*)::int from orders where claim_id is not null"); n != 0 ||
		len(d.owner.Servers(t)) != 0 {
		t.Errorf("%d orders are worked on", n)
	}
	// A lost connection accepts no orders and shows none.
	exec(t, d.conn, "update connections set status = 'lost', reason = 'why'")
	for what, a := range map[string]testkit.Answer{
		"the same request": d.app.Post(t, "/v1/launch", request),
		"a new order":      d.app.Post(t, "/v1/launch", d.body(t, nil)),
		"a read":           d.app.Get(t, path+through),
	} {
		if a.Status != 403 || !strings.Contains(string(a.Body), `"delegation_lost"`) {
			t.Errorf("%s when it is lost: got %d %s", what, a.Status, a.Body)
		}
	}
	exec(t, d.conn, "update connections set status = 'deleted'")
	if a := d.app.Get(t, path+through); a.Status != 404 {
		t.Errorf("when it is deleted: got %d %s", a.Status, a.Body)
	}
}

// TestLongOwnerRefreshesOrderByConnection checks that the owner's own token updates an order through a connection from
// Nova, unless its servers are in another cloud.
func TestLongOwnerRefreshesOrderByConnection(t *testing.T) {
	t.Parallel()
	d := delegated(t, nil)
	owner := d.app.As(d.owner.Token(t))
	var order, made Order
	d.app.Post(t, "/v1/launch", d.body(t, nil)).JSON(t, &order)
	owner.Post(t, "/v1/launch", body(t, nil)).JSON(t, &made) // a server, which run-connections could have made as well
	exec(t, d.conn, "update instances set server_id = 'moved', state = 'deleted' where id = $1", made.Instances[0].ID)
	exec(t, d.conn, "update instances set server_id = $2, state = 'building', remote = true where id = $1",
		order.Instances[0].ID, made.Instances[0].ServerID)
	path := "/v1/launch/" + order.ID.String()
	look := func() Instance {
		t.Helper()
		var got Order
		if a := owner.Get(t, path); a.Status != 200 {
			t.Fatalf("got %d %s", a.Status, a.Body)
		} else {
			a.JSON(t, &got)
		}
		if got.Status != domain.OrderRunning { // run-connections decides that
			t.Errorf("the order is %s", got.Status)
		}
		return got.Instances[0]
	}
	testkit.Eventually(t, 4*time.Minute, "the server is ACTIVE",
		func() bool { return d.owner.Servers(t)[0].Status == "ACTIVE" })
	if i := look(); i.State != domain.InstanceBuilding {
		t.Errorf("in another cloud: %+v", i)
	}
	exec(t, d.conn, "update instances set remote = false where id = $1", order.Instances[0].ID)
	if i := look(); i.State != domain.InstanceActive {
		t.Errorf("in this cloud: %+v", i)
	}
	exec(t, d.conn, "update instances set disconnected_at = now() where id = $1", order.Instances[0].ID)
	var left Order
	if owner.Get(t, path).JSON(t, &left); len(left.Instances) != 0 {
		t.Errorf("it is disconnected: %+v", left)
	}
}
