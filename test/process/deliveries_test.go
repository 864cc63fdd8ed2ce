package process_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fleet is every function that an order's events come through, each in a process of its own, which can be killed.
type fleet struct {
	env map[string]string

	mu        sync.Mutex
	processes map[string]*testkit.Process
}

// newFleet starts the functions. They wake each other through one address, as on a cluster.
func newFleet(t *testing.T, env map[string]string, functions ...string) *fleet {
	t.Helper()
	f := &fleet{env: env, processes: map[string]*testkit.Process{}}
	router := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := f.of(strings.TrimPrefix(r.URL.Path, "/"))
		if p == nil { // the test does without this function
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		to, err := url.Parse(p.URL)
		if err != nil {
			t.Error(err)
			return
		}
		proxy := &httputil.ReverseProxy{
			Rewrite: func(pr *httputil.ProxyRequest) { pr.SetURL(to); pr.Out.URL.Path = "/" },
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request,
				_ error,
			) {
				w.WriteHeader(http.StatusBadGateway)
			},
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(router.Close)
	env["WAKE_URL"] = router.URL + "/{function}"
	for _, name := range functions {
		f.start(t, name)
	}
	return f
}

func (f *fleet) start(t *testing.T, name string) {
	t.Helper()
	env := maps.Clone(f.env)
	env["FUNCTION_TARGET"] = name
	p := testkit.Spawn(t, env)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processes[name] = p
}

func (f *fleet) of(name string) *testkit.Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.processes[name]
}

// killing kills deliver-events after each pause and starts it again, until the given function is called, which says how
// often it did. Between the kills it ticks, as PingSource does.
func (f *fleet) killing(t *testing.T, pause time.Duration) (stop func() int) {
	t.Helper()
	stopped, ended := make(chan struct{}), make(chan struct{})
	kills := 0
	go func() {
		defer close(ended)
		for round := 0; ; round++ {
			go func(p *testkit.Process) { _, _ = p.TryTick(t, "deliver-events") }(f.of("deliver-events"))
			select {
			case <-stopped:
				return
			case <-time.After(pause):
			}
			f.of("deliver-events").Kill()
			f.start(t, "deliver-events")
			kills++
		}
	}()
	return func() int {
		close(stopped)
		<-ended
		return kills
	}
}

// TestLongEveryTransitionArrives orders fifty servers and stops, starts, reboots and deletes them, while the deliverer
// is killed after each pause and a receiver of each bad kind is registered, too: a receiver of the plain CloudEvents
// SDK and one that verifies with the Standard Webhooks library get every event of the outbox, in order.
func TestLongEveryTransitionArrives(t *testing.T) {
	testkit.Heavy(t)
	const servers, pause = 50, 3 * time.Second
	project := testkit.NewProject(t)
	project.SetQuota(t, -1)
	facts, token, database := testkit.Sandbox(t), project.Token(t), testkit.Database(t)
	conn := testkit.Connect(t, database)
	f := newFleet(t, testkit.Env(t, database, map[string]string{
		"ALLOWED_PROJECTS": project.ID, "CALLBACK_TIMEOUT": "2s", "REQUEST_TIMEOUT": "5m",
	}), "callbacks", "launch", "servers", "poll-instances", "deliver-events")

	plain, key := testkit.NewSDKReceiver(t), "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	signed := testkit.NewSignedReceiver(t, key)
	urls := []string{plain.URL, signed.URL}
	bad := testkit.BadReceivers(t)
	for r := range maps.Values(bad) {
		urls = append(urls, r.URL)
	}
	for _, u := range urls {
		if a := f.of("callbacks").As(token).Post(t, "/v1/callbacks",
			fmt.Sprintf(`{"url": %q, "secret": %q}`, u, key)); a.Status != 201 {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
	}
	stop := f.killing(t, pause)

	ticking := make(chan struct{})
	defer close(ticking)
	go func() { // as PingSource does, more often
		for {
			_, _ = f.of("poll-instances").TryTick(t, "poll-instances")
			select {
			case <-ticking:
				return
			case <-time.After(2 * time.Second):
			}
		}
	}()
	order := fmt.Sprintf(`{"name": "fleet", "flavor": %q, "image": %q, "networks": [%q], "count": %d}`, facts.FlavorID,
		facts.ImageID, facts.NetworkID, servers)
	a := f.of("launch").As(token).Post(t, "/v1/launch", order)
	if a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	var placed struct {
		Instances []struct{ ID string }
	}
	a.JSON(t, &placed)
	var ids []string
	for _, i := range placed.Instances {
		ids = append(ids, i.ID)
	}
	all := func(state string) {
		testkit.Eventually(t, 4*time.Minute, "all are "+state, func() bool {
			return testkit.Scalar[int](t, conn,
				"select count(*)::int from instances where project_id = $1 and state = $2", project.ID, state) == servers
		})
	}
	all("active")
	for _, step := range []struct{ action, state string }{
		{"stop", "stopped"}, {"start", "active"}, {"reboot", "active"}, {"delete", "deleted"},
	} {
		body, err := json.Marshal(map[string]any{"action": step.action, "ids": ids})
		if err != nil {
			t.Fatal(err)
		}
		if a := f.of("servers").As(token).Post(t, "/v1/servers/actions", string(body)); a.Status != 202 {
			t.Fatalf("%s: got %d %s", step.action, a.Status, a.Body)
		}
		all(step.state)
	}

	kills := stop()
	want := outbox(t, conn, project.ID)
	for name, r := range map[string]*testkit.Receiver{"plain": plain, "signed": signed} {
		testkit.Eventually(t, time.Minute, "the receiver that is "+name+" has every event", func() bool {
			return len(missing(want, r)) == 0
		})
		r.InOrder(t)
	}
	for _, id := range ids {
		if got := states(plain, id); !subsequence(got, "requested", "building", "active", "stopped", "active",
			"rebooting", "active", "deleted") {
			t.Errorf("the events of %s have %v", id, got)
		}
	}
	for name, r := range bad {
		if r.Posts() == 0 {
			t.Errorf("the receiver that answers %q was never tried", name)
		}
	}
	repeats := len(plain.Events()) + len(signed.Events()) - 2*len(want)
	t.Logf("%d events to each of two receivers, %d repeats, %d kills", len(want), repeats, kills)
	if kills < 5 {
		t.Error("that were too few kills to prove anything")
	}
}

// outbox are the ids of the project's events of instances and orders.
func outbox(t *testing.T, conn *pgx.Conn, projectID string) []string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), "select subject || ':' || seq from events where project_id = $1 and type <> $2",
		projectID, domain.CallbackEvent)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(ids) == 0 {
		t.Fatalf("%d events, %v", len(ids), err)
	}
	return ids
}

func missing(ids []string, r *testkit.Receiver) []string {
	seen := map[string]bool{}
	for _, e := range r.Events() {
		seen[e.ID] = true
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return seen[id] })
}

// states returns the states of an instance in the events of a receiver, without repeats.
func states(r *testkit.Receiver, id string) []string {
	var list []string
	last := 0
	for _, e := range r.Events() {
		var data struct{ State string }
		if e.Subject != id || e.Seq <= last || json.Unmarshal([]byte(e.Data), &data) != nil {
			continue
		}
		last = e.Seq
		list = append(list, data.State)
	}
	return list
}

// subsequence reports whether the wanted states were passed through in this order.
func subsequence(got []string, want ...string) bool {
	for _, state := range got {
		if len(want) > 0 && state == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}
