package process_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongLaunchSurvivesAKill kills a replica when some of an order's servers are decided and others are not, while
// another one has the same order. TestLongLaunchSurvivesKill does so at random moments.
func TestLongLaunchSurvivesAKill(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	const count = 6 // more than are created concurrently
	launch := newSurvivors(t, count)
	var creates atomic.Int64
	launch.first = heldNova(t, "collector", func(r *http.Request) bool {
		return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/servers") && creates.Add(1) > 3
	})
	n := launch.killed(t, func(order string) time.Duration {
		began := time.Now()
		testkit.Eventually(t, 4*time.Minute, "the order is half done",
			func() bool { return launch.accepted(t, order) > 0 })
		return time.Since(began)
	}, false)
	if n == 0 || n == count {
		t.Errorf("Nova had accepted %d of %d servers at the kill, so this proves nothing", n, count)
	}
}

// heldNova is the environment of a process that must be killed: the requests that match get no answer and do not reach
// Nova.
func heldNova(t *testing.T, account string, match func(*http.Request) bool) map[string]string {
	t.Helper()
	held := make(chan struct{})
	nova, _ := testkit.Intercept(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(r *http.Request) {
		if match(r) {
			<-held
			panic(http.ErrAbortHandler)
		}
	})
	t.Cleanup(func() { close(held) })
	return testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, account)
}

// survivors are orders of some servers each, that are to survive the replicas which launch them.
type survivors struct {
	project         *testkit.Project
	token, database string
	count           int
	first           map[string]string // more of the environment of the replica that is killed first
}

func newSurvivors(t *testing.T, count int) survivors {
	t.Helper()
	project := testkit.NewProject(t)
	project.SetQuota(t, -1)
	return survivors{project: project, token: project.Token(t), database: testkit.Database(t), count: count}
}

// accepted is how many of the order's servers Nova has accepted, as far as that is written down.
func (s survivors) accepted(t *testing.T, order string) int {
	t.Helper()
	return testkit.Scalar[int](t, testkit.Pool(t, s.database),
		"select count(server_id)::int from instances where order_id = $1", order)
}

// claimed reports whether a replica works on the order.
func (s survivors) claimed(t *testing.T, order string) bool {
	t.Helper()
	return testkit.Scalar[int](t, testkit.Pool(t, s.database), "select count(claim_id)::int from orders where id = $1",
		order) == 1
}

// placed is an order as its answer shows it.
type placed struct {
	Status    string
	Instances []struct {
		ID       string
		ServerID string `json:"server_id"`
		State    string
	}
}

func (o placed) decided() (n int) {
	for _, i := range o.Instances {
		if i.State != "requested" {
			n++
		}
	}
	return n
}

// killed launches an order with a replica that is killed when wait returns, which says how long that took, and with
// another one that gets the order once the first has claimed it. With both, the other one is killed as well. It says
// how many servers Nova had accepted then.
func (s survivors) killed(t *testing.T, wait func(order string) time.Duration, both bool) (before int) {
	t.Helper()
	f := testkit.Sandbox(t)
	vars := map[string]string{"FUNCTION_TARGET": "launch"}
	env := testkit.Env(t, s.database, vars)
	maps.Copy(vars, s.first)
	first, second := testkit.Spawn(t, testkit.Env(t, s.database, vars)), testkit.Spawn(t, env)
	id := uuid.NewString()
	order := fmt.Sprintf(`{"id":%q,"name":"survivor","flavor":%q,"image":%q,"networks":[%q],"count":%d}`, id,
		f.FlavorID, f.ImageID, f.NetworkID, s.count)
	var all sync.WaitGroup
	send := func(p *testkit.Process) {
		all.Go(func() { _, _ = p.As(s.token).Try(t, "POST", "/v1/launch", order, "Content-Type", "application/json") })
	}
	send(first)
	testkit.Eventually(t, time.Minute, "the first replica has claimed the order",
		func() bool { return s.claimed(t, id) })
	send(second)
	moment := wait(id)
	first.Kill()
	before = s.accepted(t, id)
	if both {
		second.Kill()
		second = testkit.Spawn(t, env)
	}
	all.Wait()
	var got placed
	testkit.Eventually(t, 6*time.Minute, "the order is decided", func() bool {
		time.Sleep(time.Second)
		a := second.As(s.token).Post(t, "/v1/launch", order)
		if a.Status > 202 { // Nova is busy
			return false
		}
		a.JSON(t, &got)
		return got.decided() == s.count
	})
	s.check(t, id, second.As(s.token), moment)
	second.Kill()
	return before
}

// check compares Nova's servers of the order with the order's answer, and deletes them. A server that was made twice,
// because Nova took longer over a call than the caller's claim, is deleted after a GET of the order.
func (s survivors) check(t *testing.T, id string, app *testkit.Client, moment time.Duration) {
	t.Helper()
	var got placed
	app.Get(t, "/v1/launch/"+id).JSON(t, &got)
	mine := s.serversOf(t, id)
	if n := len(mine); n > s.count {
		t.Logf("killed after %s: %d servers were made twice", moment, n-s.count)
	}
	for end := time.Now().Add(time.Minute); len(mine) > s.count && time.Now().Before(end); time.Sleep(time.Second) {
		app.Get(t, "/v1/launch/"+id)
		mine = s.serversOf(t, id)
	}
	for _, i := range got.Instances {
		if !slices.ContainsFunc(mine, func(m testkit.Server) bool {
			return m.ID == i.ServerID && slices.Contains(*m.Tags, i.ID)
		}) {
			t.Errorf("killed after %s: Nova has no server of %+v", moment, i)
		}
	}
	if len(mine) != s.count || len(got.Instances) != s.count {
		t.Errorf("killed after %s: Nova has %d servers of the order, which has %d, want %d", moment, len(mine),
			len(got.Instances), s.count)
	}
	for _, m := range mine {
		s.project.Drop(t, m.ID)
	}
}

// serversOf are Nova's servers of the order.
func (s survivors) serversOf(t *testing.T, id string) []testkit.Server {
	t.Helper()
	return slices.DeleteFunc(s.project.Servers(t), func(m testkit.Server) bool {
		return !slices.Contains(*m.Tags, "cloudfn-order:"+id)
	})
}

// TestLongCollectSurvivesKill kills the replica that counts, in the middle of it: once its claim has ended another one
// counts the same hours, each once.
func TestLongCollectSurvivesKill(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	var calls atomic.Int64
	held := heldNova(t, "collector", func(*http.Request) bool { return calls.Add(1) > 0 })
	database := testkit.Database(t)
	env := map[string]string{
		"FUNCTION_TARGET": "collect-stats", "ALLOWED_PROJECTS": project.ID, "STATS_BACKFILL": "2h",
		"EVENT_TIMEOUT": "25s", // more than a count takes where Nova is slow
	}
	maps.Copy(held, env)
	testkit.SetClock(t, database, time.Now().Truncate(time.Hour).Add(90*time.Minute)) // no hour turns meanwhile
	first, second := testkit.Spawn(t, testkit.Env(t, database, held)), testkit.Spawn(t, testkit.Env(t, database, env))
	var all sync.WaitGroup
	all.Go(func() { _, _ = first.TryTick(t, "collect-stats") })
	testkit.Eventually(t, 20*time.Second, "the first replica calls Nova", func() bool { return calls.Load() > 0 })
	first.Kill()
	all.Wait()
	conn := testkit.Connect(t, database)
	rows := func() int { return testkit.Scalar[int](t, conn, "select count(*)::int from stats_hourly") }
	if n := rows(); n != 0 {
		t.Fatalf("%d rows before the kill: it came too late to prove anything", n)
	}
	testkit.Eventually(t, 3*time.Minute, "another replica has counted", func() bool {
		return second.Tick(t, "collect-stats").Status == 204 && rows() > 0
	})
	if n := rows(); n != 2 {
		t.Errorf("%d rows, want one for each of two hours", n)
	}
	if n := testkit.Scalar[int](t, conn,
		"select attempts from jobs where kind = 'collect-stats' and done_at is not null"); n != 2 {
		t.Errorf("the job took %d attempts, want 2", n)
	}
}

// TestLongLaunchSurvivesKill sends orders of ten to two replicas concurrently, kills one of them at a random moment,
// and sends each again, to the other replica or to one that was started again, until it is finished: Nova then has
// exactly its servers.
func TestLongLaunchSurvivesKill(t *testing.T) {
	testkit.Heavy(t)
	const kills, count, parallel = 20, 10, 4
	launch := newSurvivors(t, count)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var all sync.WaitGroup
	slots := make(chan struct{}, parallel)
	var amid atomic.Int64
	for round := range kills {
		moment := time.Duration(100+random.IntN(8000)) * time.Millisecond
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			n := launch.killed(t, func(string) time.Duration { time.Sleep(moment); return moment }, round%2 == 0)
			if n > 0 && n < count {
				amid.Add(1)
			}
		})
	}
	all.Wait()
	t.Logf("seed %d: %d of %d kills came while an order was half done", seed, amid.Load(), kills)
	if amid.Load() == 0 {
		t.Error("no kill came in the middle of an order, so this proves nothing")
	}
}

// TestLongRollbackSurvivesKill kills the replica that rolls an order back: another one finishes the order when it is
// read.
func TestLongRollbackSurvivesKill(t *testing.T) {
	testkit.Heavy(t)
	f := testkit.Sandbox(t)
	project := testkit.NewProject(t)
	database := testkit.Database(t)
	token := project.Token(t)
	env := testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "launch"})
	first, second := testkit.Spawn(t, env), testkit.Spawn(t, env)
	id := uuid.NewString()
	order := fmt.Sprintf(`{"id":%q,"name":"gone","flavor":%q,"image":%q,"networks":[%q],"on_failure":"rollback",
		"generate_key":true,"instances":[{},{},{},{},{},{"flavor":%q}]}`, id, f.FlavorID, f.ImageID, f.NetworkID, project.TooLargeFlavor(t))
	var all sync.WaitGroup
	all.Go(func() {
		_, err := first.As(token).Try(t, "POST", "/v1/launch", order, "Content-Type", "application/json")
		for err == nil { // the request's time was too short
			_, err = first.As(token).Try(t, "GET", "/v1/launch/"+id, "")
		}
	})
	conn := testkit.Connect(t, database)
	testkit.Eventually(t, 4*time.Minute, "one has failed", func() bool {
		return testkit.Scalar[bool](t, conn, "select exists (select from instances where state in ('error', 'deleting', 'deleted'))")
	})
	first.Kill()
	all.Wait()
	if got := testkit.Scalar[string](t, conn, "select status from orders"); got != "running" {
		t.Fatalf("the order is %s already: the kill came too late to prove anything", got)
	}
	var got placed
	testkit.Eventually(t, 3*time.Minute, "the order is rolled back", func() bool {
		second.As(token).Get(t, "/v1/launch/"+id).JSON(t, &got)
		return got.Status == "rolled_back"
	})
	if left, keys := project.Servers(t), project.KeyPairs(t); len(left) != 0 || len(keys) != 0 {
		t.Errorf("left are the servers %+v and the key pairs %v", left, keys)
	}
}

// muteKeystone makes the requested trusts, but never answers those requests.
func muteKeystone(t *testing.T) (env map[string]string, made *atomic.Int64) {
	t.Helper()
	behind := testkit.RedirectTo(t, nil)
	to, err := url.Parse(behind.URL())
	if err != nil {
		t.Fatal(err)
	}
	made = &atomic.Int64{}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host },
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode == http.StatusCreated && strings.HasSuffix(resp.Request.URL.Path, "/OS-TRUST/trusts") {
				made.Add(1)
				<-resp.Request.Context().Done()
			}
			return nil
		},
	})
	t.Cleanup(proxy.Close)
	env = behind.Env(t, "collector")
	env["OS_AUTH_URL"] = proxy.URL + "/v3"
	return env, made
}

// TestLongTrustsSurviveKill kills a process after Keystone has made the trusts of a changed connection and of a granted
// request, and before it has said so. Neither is stored, and both are taken back. The connection's own trust stays, and
// the same requests succeed later.
func TestLongTrustsSurviveKill(t *testing.T) {
	t.Parallel()
	d := newDelegates(t)
	connection := d.delegate(t, `["allocate"]`, `{}`)
	requested := d.at(d.actor, "connections").Post(t, "/v1/connections/requests", fmt.Sprintf(
		`{"project_id": %q, "why": "we build at night", "actions": ["allocate"], "duration": "2h"}`, d.owner.ID))
	var request struct{ ID string }
	if requested.JSON(t, &request); requested.Status != http.StatusCreated {
		t.Fatalf("%d %s", requested.Status, requested.Body)
	}
	own := d.owner.Trusts(t)
	calls := map[string]func(*testkit.Client) (testkit.Answer, error){
		"change": func(c *testkit.Client) (testkit.Answer, error) {
			body := fmt.Sprintf(`{"expires_at": %q}`, time.Now().Add(3*time.Hour).UTC().Format(time.RFC3339))
			return c.Try(t, "PATCH", "/v1/connections/"+connection, body, "Content-Type", "application/json")
		},
		"grant": func(c *testkit.Client) (testkit.Answer, error) {
			return c.Try(t, "POST", "/v1/connections/requests/"+request.ID+"/grant", `{}`, "Content-Type",
				"application/json")
		},
	}

	env, made := muteKeystone(t)
	env["FUNCTION_TARGET"] = "connections"
	victim := testkit.Spawn(t, testkit.Env(t, d.database, env))
	var all sync.WaitGroup
	for _, call := range calls {
		all.Go(func() { _, _ = call(victim.As(d.tokens[d.owner])) })
	}
	testkit.Eventually(t, time.Minute, "Keystone has made both trusts", func() bool { return made.Load() == 2 })
	victim.Kill()
	all.Wait()
	conn := testkit.Connect(t, d.database)
	if n := len(d.owner.Trusts(t)); n != 3 {
		t.Fatalf("Keystone has %d trusts", n)
	}
	change(t, conn, "update trusts_to_revoke set not_before = not_before - interval '5 minutes'")
	change(t, conn, "update connection_requests set claimed_until = claimed_until - interval '5 minutes'")
	testkit.Eventually(t, time.Minute, "both are taken back", func() bool {
		d.tick(t)
		return slices.Equal(d.owner.Trusts(t), own)
	})
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from trusts_to_revoke"); n != 0 {
		t.Errorf("%d are still on the list", n)
	}
	for name, want := range map[string]int{"change": http.StatusOK, "grant": http.StatusCreated} {
		if a, err := calls[name](d.at(d.owner, "connections")); err != nil || a.Status != want {
			t.Errorf("%s after that: %d %s %v", name, a.Status, a.Body, err)
		}
	}
	if n := len(d.owner.Trusts(t)); n != 3 { // the replaced one stays for two minutes
		t.Errorf("Keystone has %d trusts", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from connections where status = 'active'"); n != 2 {
		t.Errorf("there are %d connections", n)
	}
}
