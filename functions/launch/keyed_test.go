package launch

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// keyedLaunch is a launch that is sent again with its Idempotency-Key.
type keyedLaunch struct {
	app       *testkit.Client
	body, key string
}

func (k keyedLaunch) send(t *testing.T, when string, want int, isReplayed bool) (testkit.Answer, Order) {
	t.Helper()
	var order Order
	a := k.app.Do(t, "POST", "/v1/launch", k.body, "Content-Type", "application/json", "Idempotency-Key", k.key)
	if a.Status != want || (a.Header.Get("Idempotency-Replayed") != "") != isReplayed {
		t.Fatalf("%s: got %d %v %s", when, a.Status, a.Header, a.Body)
	}
	if want < 300 {
		a.JSON(t, &order)
	}
	return a, order
}

// TestKeyedCrashPoints: whenever a replica dies, an order is there once, and has one server, however often it is sent
// with its key.
func TestKeyedCrashPoints(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	conn := testkit.Connect(t, database)
	k := keyedLaunch{app, body(t, nil), uuid.NewString()}
	once := func(when string, want int, isReplayed bool) (a testkit.Answer, order Order) {
		t.Helper()
		if a, order = k.send(t, when, want, isReplayed); want == 409 {
			return a, order
		}
		n := testkit.Scalar[int](t, conn, "select count(*)::int from orders")
		if made := p.Servers(t); n != 1 || len(made) != 1 {
			t.Errorf("%s: there are %d orders, and the servers %+v", when, n, made)
		}
		return a, order
	}
	first, order := once("first", 202, false)
	again, _ := once("stored", 202, true)
	if string(again.Body) != string(first.Body) || again.Header.Get("Location") != first.Header.Get("Location") {
		t.Errorf("got %v %s, and then %v %s", first.Header, first.Body, again.Header, again.Body)
	}
	for _, point := range []struct {
		name, sql, state string
		want             int
	}{
		{"at work", "", testkit.AtWork, 409},
		{"died when it was done", "", testkit.Died, 200},
		{
			"died before it stored Nova's answer",
			"update instances set server_id = null, state = 'requested', seen_at = null", testkit.Died, 200,
		},
		{"died before it stored the order", "delete from orders", testkit.Died, 202},
	} {
		if point.want == 202 { // Nova was not asked
			p.Delete(t, p.Servers(t)[0].ID)
			exec(t, conn, "delete from instances")
			exec(t, conn, "delete from events")
		}
		exec(t, conn, point.sql)
		testkit.LeaveRequests(t, conn, point.state)
		if _, again := once(point.name, point.want, false); point.want != 409 && again.ID != order.ID {
			t.Errorf("%s: it made %s, and then %s", point.name, order.ID, again.ID)
		}
	}
}

// TestKeyedLaunchWithID: the order has the id of the body, and the key works, too: a lost private key is shown again.
func TestKeyedLaunchWithID(t *testing.T) {
	t.Parallel()
	d := delegated(t, nil)
	id := uuid.NewString()
	k := keyedLaunch{d.app, d.body(t, object{"id": id, "generate_key": true}), uuid.NewString()}
	first, order := k.send(t, "first", 202, false)
	if again, _ := k.send(t, "again", 202, true); string(again.Body) != string(first.Body) ||
		order.ID.String() != id || !strings.Contains(order.PrivateKey, "PRIVATE KEY") {
		t.Errorf("got %s, and then %s", first.Body, again.Body)
	}
	k.body = d.body(t, object{"id": uuid.NewString(), "generate_key": true})
	k.send(t, "with another id", 422, false)
}
