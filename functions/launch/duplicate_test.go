package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// slowNova is a proxy of the sandbox's Nova. It delays the first create call until release is called, even if its
// client is gone. creates counts the calls.
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
	env["FUNCTION_TARGET"], env["LAUNCH_CLAIM"] = "launch", "12s" // the sandbox may be slow
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
	testkit.Eventually(t, 2*time.Minute, "the duplicate is gone", func() bool { return len(p.Servers(t)) == 1 })
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

// TestLongResendAfterKill kills a process during create calls: its claim lasts for seconds, although LAUNCH_CLAIM is
// minutes. Another process then continues the order, and adopts the servers that Nova still makes.
func TestLongResendAfterKill(t *testing.T) {
	t.Parallel()
	p, database := testkit.BorrowProject(t), testkit.Database(t)
	env, creates, release := slowNova(t)
	env["FUNCTION_TARGET"], env["LAUNCH_CLAIM"] = "launch", "10m"
	env = testkit.Env(t, database, env)
	first, second := testkit.Spawn(t, env), testkit.Spawn(t, env).As(p.Token(t))
	request := body(t, object{"id": uuid.NewString(), "name": "killed", "count": 2})
	go func() {
		_, _ = first.As(p.Token(t)).Try(t, "POST", "/v1/launch", request, "Content-Type", "application/json")
	}()
	testkit.Eventually(t, time.Minute, "the calls are under way", func() bool { return creates.Load() == 2 })
	conn := testkit.Connect(t, database)
	const claim = "select coalesce(claim_id::text, '') from orders"
	dead := testkit.Scalar[string](t, conn, claim)
	first.Kill()
	const left = "select claimed_until - clock_timestamp() <= interval '15 s' from orders"
	if !testkit.Scalar[bool](t, conn, left) {
		t.Error("the claim lasts for longer than 15 s")
	}
	a := second.Post(t, "/v1/launch", request)
	if a.Status != 200 || a.Header.Get("Retry-After") == "" || len(a.Header.Get("Retry-After")) > 2 {
		t.Errorf("at once: got %d %v %s", a.Status, a.Header, a.Body)
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
