package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// slowNova is a proxy of the sandbox's Nova. It delays the first create call until release is called, even if its
// client has disconnected. creates counts the calls.
func slowNova(t *testing.T) (env map[string]string, creates *atomic.Int64, release func()) {
	t.Helper()
	gate, creates := make(chan struct{}), &atomic.Int64{}
	nova, _ := testkit.Intercept(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(r *http.Request) {
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/servers") || creates.Add(1) > 1 {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 2*time.Minute)
		t.Cleanup(cancel)
		sent, _ := io.ReadAll(r.Body)
		*r = *r.WithContext(ctx)
		r.Body = io.NopCloser(bytes.NewReader(sent))
		<-gate
	})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	return testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "collector"), creates, open
}

// TestLongDuplicateServerIsDeleted lets Nova take longer over a create call than its fence: the second call's server is
// kept, and the first one's is deleted when it appears.
func TestLongDuplicateServerIsDeleted(t *testing.T) {
	t.Parallel()
	p, database := testkit.BorrowProject(t), testkit.Database(t)
	env, creates, release := slowNova(t)
	env["FUNCTION_TARGET"] = "launch"
	app := testkit.Spawn(t, testkit.Env(t, database, env)).As(p.Token(t))
	request := body(t, object{"id": uuid.NewString(), "name": "twice"})
	var order Order
	a := app.Post(t, "/v1/launch", request)
	if a.JSON(t, &order); a.Status != 202 || order.Instances[0].ServerID != "" || a.Header.Get("Retry-After") == "" {
		t.Fatalf("got %d %v %s", a.Status, a.Header, a.Body)
	}
	// The same request waits until the first call's fence ends, and makes another call.
	a = app.Post(t, "/v1/launch", request)
	if a.JSON(t, &order); a.Status != 200 || order.Instances[0].ServerID == "" || creates.Load() != 2 {
		t.Fatalf("after %d calls: got %d %s", creates.Load(), a.Status, a.Body)
	}
	own := order.Instances[0].ServerID
	release()
	testkit.Eventually(t, 2*time.Minute, "Nova has made two servers", func() bool { return len(p.Servers(t)) == 2 })
	// Nova may have taken longer over the duplicate than over the other.
	exec(t, testkit.Pool(t, database), "update orders set status = 'running'")
	app.Get(t, "/v1/launch/"+order.ID.String())
	testkit.Eventually(t, 2*time.Minute, "the duplicate is deleted", func() bool { return len(p.Servers(t)) == 1 })
	if left := p.Servers(t)[0]; left.ID != own {
		t.Errorf("%s is left, want %s", left.ID, own)
	}
	app.Get(t, "/v1/launch/"+order.ID.String()).JSON(t, &order)
	if order.Instances[0].ServerID != own {
		t.Errorf("the order is %+v", order)
	}
	if n := testkit.Scalar[int](t, testkit.Pool(t, database), "select count(*)::int from unexpected_servers"); n != 0 {
		t.Errorf("%d servers were reported", n)
	}
}

// TestLongResendAfterKill kills a process during create calls: its claim lasts for seconds, although a create call's fence
// lasts longer. Another process then continues the order, and adopts the servers that Nova still makes.
func TestLongResendAfterKill(t *testing.T) {
	t.Parallel()
	p, database := testkit.BorrowProject(t), testkit.Database(t)
	env, creates, release := slowNova(t)
	env["FUNCTION_TARGET"] = "launch"
	env = testkit.Env(t, database, env)
	first, second := testkit.Spawn(t, env), testkit.Spawn(t, env).As(p.Token(t))
	request := body(t, object{"id": uuid.NewString(), "name": "killed", "count": 2})
	go func() {
		_, _ = first.As(p.Token(t)).Try(t, "POST", "/v1/launch", request, "Content-Type", "application/json")
	}()
	testkit.Eventually(t, time.Minute, "the calls are under way", func() bool { return creates.Load() == 2 })
	conn := testkit.Connect(t, database)
	exec(t, testkit.Pool(t, database), "update create_calls set until = until + interval '10 minutes'")
	const claim = "select coalesce(claim_id::text, '') from orders"
	dead := testkit.Scalar[string](t, conn, claim)
	first.Kill()
	const left = "select claimed_until - clock_timestamp() <= interval '15 s' from orders"
	if !testkit.Scalar[bool](t, conn, left) {
		t.Error("the claim lasts for longer than 15 s")
	}
	a := second.Post(t, "/v1/launch", request)
	if a.Status != 200 || a.Header.Get("Retry-After") == "" || len(a.Header.Get("Retry-After")) > 2 {
		t.Errorf("immediately: got %d %v %s", a.Status, a.Header, a.Body)
	}
	var order Order
	decided := make(chan struct{})
	go func() {
		defer close(decided)
		for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
			if a, err := second.Try(t, "POST", "/v1/launch", request, "Content-Type", "application/json"); err != nil ||
				json.Unmarshal(a.Body, &order) != nil {
				continue
			}
			if order.Instances[0].ServerID != "" && order.Instances[1].ServerID != "" {
				return
			}
		}
	}()
	testkit.Eventually(t, time.Minute, "another process works on the order",
		func() bool { return testkit.Scalar[string](t, conn, claim) != dead })
	release()
	<-decided
	if creates.Load() != 2 {
		t.Errorf("there were %d create calls, want 2", creates.Load())
	}
	if n := len(p.Servers(t)); n != 2 {
		t.Errorf("Nova has %d servers, want 2", n)
	}
}

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
		if point.want == 202 { // Nova was not called
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
	// Nova gives the ports of a server that it was still building back a moment after the server is deleted.
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

// faultless is a proxy of the real Nova whose lists have no faults, like those of a Nova whose API has another database
// than the server's cell. The sandbox's API shares that of cell0, which has the servers that got no host.
func faultless(t *testing.T) (computeURL string) {
	t.Helper()
	nova, err := url.Parse(testkit.Compute(t, testkit.Login(t, "admin")).Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = nova.Scheme, nova.Host },
		ModifyResponse: func(r *http.Response) error {
			var list struct {
				Servers []map[string]any `json:"servers"`
			}
			body, err := io.ReadAll(r.Body)
			if json.Unmarshal(body, &list) == nil && list.Servers != nil {
				for _, server := range list.Servers {
					delete(server, "fault")
				}
				body, _ = json.Marshal(list)
				r.Header.Del("Content-Length")
				r.ContentLength = int64(len(body))
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			return err
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL + strings.TrimSuffix(nova.Path, "/")
}

// TestLongFaultOfServerInError checks that the order and its event have Nova's fault, although Nova's lists leave it
// out.
func TestLongFaultOfServerInError(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	env := testkit.RedirectTo(t, map[string]string{"compute": faultless(t)}).Env(t, "collector")
	app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
	id := uuid.NewString()
	var order Order
	if a := app.Post(t, "/v1/launch",
		body(t, object{"id": id, "flavor": p.TooLargeFlavor(t)})); a.Status != http.StatusAccepted {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	testkit.Eventually(t, 4*time.Minute, "the order ends", func() bool {
		app.Get(t, "/v1/launch/"+id).JSON(t, &order)
		return order.Status != domain.OrderRunning
	})
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Error == nil ||
		!strings.HasPrefix(i.Error.Detail, "No valid host was found") ||
		!strings.Contains(i.Error.Detail, " One host must have ") {
		t.Errorf("the order is %s: %+v", order.Status, i.Error)
	}
	fault := testkit.Scalar[string](t, testkit.Connect(t, database),
		"select data->'fault'->>'detail' from events where subject = $1 and data->>'state' = 'error'",
		order.Instances[0].ID.String())
	if !strings.HasPrefix(fault, "No valid host was found") {
		t.Errorf("its event says %q", fault)
	}
}
