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

// slowNova passes requests on to the sandbox's Nova, and holds the first that makes a server back until it is let through, also
// when nobody waits for its answer any more. creates counts those that were sent.
func slowNova(t *testing.T) (env map[string]string, creates *atomic.Int64, let func()) {
	t.Helper()
	gate, creates := make(chan struct{}), &atomic.Int64{}
	nova, _ := testkit.Through(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(r *http.Request) {
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

// TestDuplicateIsDeleted: Nova takes longer over a create call than its fence. The second call's server is kept, and that of the
// first is deleted when it comes, because the order runs.
func TestDuplicateIsDeleted(t *testing.T) {
	t.Parallel()
	p, database := testkit.NewProject(t), testkit.Database(t)
	env, creates, let := slowNova(t)
	env["FUNCTION_TARGET"], env["LAUNCH_CLAIM"] = "launch", "6s"
	app := testkit.Spawn(t, testkit.Env(t, database, env)).As(p.Token(t))
	request := body(t, object{"id": uuid.NewString(), "name": "twice"})
	var order answer
	a := app.Post(t, "/v1/launch", request)
	if a.JSON(t, &order); a.Status != 202 || order.Instances[0].ServerID != "" || a.Header.Get("Retry-After") == "" {
		t.Fatalf("got %d %v %s", a.Status, a.Header, a.Body)
	}
	// The same request again waits until the first call is surely over, and makes another.
	a = app.Post(t, "/v1/launch", request)
	if a.JSON(t, &order); a.Status != 200 || order.Instances[0].ServerID == "" || creates.Load() != 2 {
		t.Fatalf("after %d calls: got %d %s", creates.Load(), a.Status, a.Body)
	}
	own := order.Instances[0].ServerID
	let()
	testkit.Eventually(t, 2*time.Minute, "Nova has made two servers", func() bool { return len(p.Servers(t)) == 2 })
	exec(t, testkit.Pool(t, database), "update orders set status = 'running'") // Nova may have taken longer over the duplicate than over the other
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

// TestResendAfterKill: the order of a process that was killed in the middle of a create call is taken on within seconds, although
// LAUNCH_CLAIM is minutes. Until then the answer says when. Nova still makes the server of the call, so no second one is made.
func TestResendAfterKill(t *testing.T) {
	t.Parallel()
	p, database := testkit.NewProject(t), testkit.Database(t)
	env, creates, let := slowNova(t)
	env["FUNCTION_TARGET"], env["LAUNCH_CLAIM"] = "launch", "2m" // the sandbox may be slow
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
	killed := time.Now()
	a := second.Post(t, "/v1/launch", request)
	if a.Status != 200 || a.Header.Get("Retry-After") == "" || len(a.Header.Get("Retry-After")) > 2 {
		t.Errorf("at once: got %d %v %s", a.Status, a.Header, a.Body)
	}
	var order answer
	decided := make(chan struct{})
	go func() {
		defer close(decided)
		for ; time.Since(killed) < 3*time.Minute; time.Sleep(time.Second) {
			if a, err := second.Try(t, "POST", "/v1/launch", request, "Content-Type", "application/json"); err != nil || json.Unmarshal(a.Body, &order) != nil {
				continue
			}
			if order.Instances[0].ServerID != "" && order.Instances[1].ServerID != "" {
				return
			}
		}
	}()
	testkit.Eventually(t, time.Minute, "another process works on the order", func() bool { return testkit.Scalar[string](t, conn, claim) != dead })
	took := time.Since(killed)
	let()
	<-decided
	t.Logf("another process worked on the order %s after the kill; it was decided after %s, with %d create calls", took, time.Since(killed), creates.Load())
	if took > 30*time.Second || creates.Load() != 2 {
		t.Errorf("it took %s to take over, and %d create calls, want 2", took, creates.Load())
	}
	if n := len(p.Servers(t)); n != 2 {
		t.Errorf("Nova has %d servers, want 2", n)
	}
}
