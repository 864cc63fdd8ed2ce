package launch

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// twenty is an order of 20 servers. Nova finds no host for three of them.
func twenty(t *testing.T, p *testkit.Project, id, onFailure string) string {
	t.Helper()
	instances := make([]object, 20)
	for n := range instances {
		instances[n] = object{}
	}
	huge := p.TooLargeFlavor(t)
	for _, n := range []int{3, 11, 19} {
		instances[n] = object{"flavor": huge}
	}
	return body(t, object{"id": id, "on_failure": onFailure, "generate_key": true, "instances": instances})
}

// TestLongPartialOrder keeps the servers that Nova made, and has Nova's reasons for the others.
func TestLongPartialOrder(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p, app, database := start(t)
	id := uuid.NewString()
	var order Order
	app.Post(t, "/v1/launch", twenty(t, p, id, "keep")).JSON(t, &order)
	testkit.Eventually(t, 4*time.Minute, "the order ends", func() bool {
		app.Get(t, "/v1/launch/"+id).JSON(t, &order)
		return order.Status != domain.OrderRunning
	})
	active, failed := 0, 0
	for _, i := range order.Instances {
		switch {
		case i.State == domain.InstanceActive && i.Error == nil:
			active++
		case i.State == domain.InstanceError && i.Error.Code == "nova_fault" &&
			strings.Contains(i.Error.Detail, "No valid host"):
			failed++
		}
	}
	if order.Status != domain.OrderPartial || active != 17 || failed != 3 {
		t.Errorf("%s, %d active, %d failed: %+v", order.Status, active, failed, order.Instances)
	}
	conn := testkit.Connect(t, database)
	got := testkit.Scalar[string](t, conn,
		"select string_agg(data->>'status', ' ' order by seq) from events where subject = $1", id)
	if got != "running partial" {
		t.Errorf("the order's events say %q", got)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from instances where key_fingerprint = ''"); n != 0 {
		t.Errorf("%d instances have no fingerprint", n)
	}
}

// TestLongRollback leaves nothing in Nova and Neutron when one server of an all-or-nothing order fails.
func TestLongRollback(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p, app, _ := start(t)
	id := uuid.NewString()
	var order Order
	a := app.Post(t, "/v1/launch", twenty(t, p, id, "rollback"))
	a.JSON(t, &order)
	t.Logf("the answer came with the status %d %s", a.Status, order.Status)
	testkit.Eventually(t, 4*time.Minute, "the order ends", func() bool {
		app.Get(t, "/v1/launch/"+id).JSON(t, &order)
		return order.Status != domain.OrderRunning
	})
	if order.Status != domain.OrderRolledBack {
		t.Fatalf("the order is %+v", order)
	}
	for _, i := range order.Instances {
		if i.State != domain.InstanceDeleted && i.State != domain.InstanceError {
			t.Errorf("%+v", i)
		}
	}
	if servers, keys := p.Servers(t), p.KeyPairs(t); len(servers) != 0 || len(keys) != 0 {
		t.Errorf("left are servers %v, key pairs %v", servers, keys)
	}
	// Nova gives the ports of a server that it was still building back a moment after the server is gone.
	testkit.Eventually(t, time.Minute, "no port is left", func() bool {
		return p.Ports(t) == 0
	})
}

// TestRollbackWhenNovaRejects makes no server when Nova rejects the first: the rejection is the answer.
func TestRollbackWhenNovaRejects(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	p.SetQuota(t, 0)
	id := uuid.NewString()
	request := body(t, object{"id": id, "count": 3, "on_failure": "rollback", "generate_key": true})
	a := app.Post(t, "/v1/launch", request)
	if a.Status != 403 || !strings.Contains(string(a.Body), "quota_exceeded") {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	var order Order
	app.Get(t, "/v1/launch/"+id).JSON(t, &order)
	if order.Status != domain.OrderRolledBack || order.Instances[2].Error.Code != "rolled_back" ||
		len(p.KeyPairs(t)) != 0 {
		t.Errorf("the order is %+v, the keys %v", order, p.KeyPairs(t))
	}
}
