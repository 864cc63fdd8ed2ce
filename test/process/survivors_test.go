package process_test

import (
	"fmt"
	"maps"
	"net/http"
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
	const count = 6 // more than are created at once
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
	vars := map[string]string{"FUNCTION_TARGET": "launch", "LAUNCH_CLAIM": "20s"}
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
// because Nova took longer over a call than the caller's claim, is gone after a GET of the order.
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
