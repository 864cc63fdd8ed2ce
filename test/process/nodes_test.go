package process_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	watchnodes "github.com/cloudfn/cloudfn/functions/watch-nodes"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// drainer drains the sandbox's isolated hosts, which no other test uses meanwhile, with a watch-nodes that can be
// killed.
type drainer struct {
	*killer

	from, to string // hosts
	admin    *openstack.Session
	store    postgres.Drains
	conn     *pgx.Conn
	env      map[string]string
	running  *testkit.Process // watch-nodes
	api      *testkit.Client  // nodes, for an admin
}

func newDrainer(t *testing.T) *drainer {
	t.Helper()
	hosts := testkit.ReservableHosts(t)
	if len(hosts) < 2 {
		t.Fatalf("the sandbox has the isolated hosts %v: two are needed", hosts)
	}
	d := &drainer{killer: &killer{}, from: hosts[0], to: hosts[1], admin: testkit.Session(t, "admin")}
	database := testkit.Database(t)
	d.conn, d.store = testkit.Connect(t, database), drainStore(t, database)
	d.env = testkit.Env(t, testkit.As(t, database, watchnodes.Function), nil) // with the rights that it declares
	maps.Copy(d.env, d.accountBehind(t, "watch-nodes"))
	d.start(t)
	nodes := testkit.Spawn(t, testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "nodes"}))
	d.api = nodes.As(testkit.Token(t, "admin"))
	return d
}

// drainStore opens the drains of a database.
func drainStore(t *testing.T, database string) postgres.Drains {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return postgres.Drains{DB: db}
}

// start starts the process, as Knative does after a kill. What a dead one had claimed is free immediately, which takes
// up to 45 s otherwise.
func (d *drainer) start(t *testing.T) {
	t.Helper()
	if _, err := d.conn.Exec(context.Background(), `
with freed as (update jobs set claimed_until = null) update drains set claimed_until = null where claim_id is not null`,
	); err != nil {
		t.Fatal(err)
	}
	d.running = testkit.Spawn(t, d.env)
	d.process.Store(d.running)
}

// tick is one PingSource's, which does not wait for the work.
func (d *drainer) tick() {
	ping(d.running, "watch-nodes")
	time.Sleep(500 * time.Millisecond)
}

// post has an admin do something to a host.
func (d *drainer) post(t *testing.T, host, what, body string, want int) {
	t.Helper()
	if a := d.api.Post(t, "/v1/nodes/"+host+"/"+what, body); a.Status != want {
		t.Fatalf("%s of %s: %d %s, want %d", what, host, a.Status, a.Body, want)
	}
}

// drain begins a drain of a host.
func (d *drainer) drain(t *testing.T, host string, parallel int) uuid.UUID {
	t.Helper()
	d.post(t, host, "drain", fmt.Sprintf(`{"parallel": %d, "server_timeout": "PT5M"}`, parallel), http.StatusAccepted)
	last, err := d.store.Last(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	return last[host].ID
}

// ends waits for the end of a drain.
func (d *drainer) ends(t *testing.T, id uuid.UUID) (drain domain.Drain) {
	t.Helper()
	testkit.Eventually(t, 5*time.Minute, "the drain ends", func() bool {
		d.tick()
		drain = d.get(t, id)
		return drain.DueAt.IsZero()
	})
	return drain
}

func (d *drainer) get(t *testing.T, id uuid.UUID) domain.Drain {
	t.Helper()
	drain, err := d.store.Get(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return drain
}

// on are the servers on a host, by name.
func (d *drainer) on(t *testing.T, host string) map[string]domain.Server {
	t.Helper()
	found, err := d.admin.HostServers(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]domain.Server{}
	for _, s := range found {
		byName[s.Name] = s
	}
	return byName
}

// kill ticks until the process is killed at one of its next calls to Nova, and starts it again.
func (d *drainer) kill(t *testing.T, calls int64) {
	t.Helper()
	d.killed = make(chan struct{}, 1)
	d.left.Store(calls)
	d.tick()
	select {
	case <-d.killed:
	case <-time.After(time.Minute):
		t.Fatal("the process made too few calls to be killed")
	}
	d.start(t)
}

// events are the events of drains of a host.
func (d *drainer) events(t *testing.T, host string) string {
	t.Helper()
	return testkit.Scalar[string](t, d.conn, `
select coalesce(string_agg(concat_ws(' ', data->>'status', case when data->>'status' = 'running' then '' else
           concat_ws('/', data->>'moved', data->>'left', data->>'skipped') end), ' ' order by seq), '')
from (select * from events where type = $2 and subject = $1 order by seq desc limit 2) e`, host, domain.DrainEvent)
}

// migrations counts Nova's records of a server leaving a host.
func migrations(t *testing.T, server, from string) (n int) {
	t.Helper()
	nova := testkit.Compute(t, testkit.Login(t, "admin"))
	var body struct {
		Migrations []struct {
			Source string `json:"source_compute"`
		} `json:"migrations"`
	}
	address := nova.ServiceURL("os-migrations") + "?instance_uuid=" + server
	if _, err := nova.Get(t.Context(), address, &body, nil); err != nil {
		t.Fatal(err)
	}
	for _, m := range body.Migrations {
		if m.Source == from {
			n++
		}
	}
	return n
}

// TestDrain drains a host of three servers: one that runs, one that is stopped and one in ERROR. watch-nodes is killed
// in the middle, the drain is cancelled, another one moves the rest, and the host is given back.
func TestDrain(t *testing.T) {
	t.Parallel()
	d := newDrainer(t)
	servers := testkit.NewProject(t).ServersOn(t, d.from, "drained", 3)
	testkit.Act(t, servers[0].ID, map[string]any{"os-stop": nil})
	testkit.Act(t, servers[1].ID, map[string]any{"os-resetState": map[string]any{"state": "error"}})
	testkit.Eventually(t, time.Minute, "one is stopped", func() bool {
		time.Sleep(200 * time.Millisecond)
		return d.count(t, d.from) == "ACTIVE 1, ERROR 1, SHUTOFF 1"
	})
	first := d.drain(t, d.from, 1)
	d.kill(t, 5)
	d.post(t, d.from, "cancel-drain", "{}", http.StatusAccepted)
	over := d.ends(t, first)
	moved, left, skipped := over.Counts()
	if over.Status != domain.DrainCancelled || moved > 1 || moved+left+skipped > 3 {
		t.Errorf("the drain is %s (%s): %+v", over.Status, over.Reason, over.Servers)
	}
	if on := len(d.on(t, d.from)); on != 3-moved {
		t.Errorf("%d servers are on %s, and %d have moved", on, d.from, moved)
	}

	second := d.drain(t, d.from, 2)
	// No server is about to land here, so the drain need not wait for one.
	if _, err := d.conn.Exec(t.Context(),
		"update drains set created_at = created_at - interval '1 minute' where id = $1", second); err != nil {
		t.Fatal(err)
	}
	over = d.ends(t, second)
	if over.Status != domain.DrainDone {
		t.Errorf("the drain is %s (%s): %+v", over.Status, over.Reason, over.Servers)
	}
	if from, to := d.count(t, d.from), d.count(t, d.to); from != "ERROR 1" || to != "ACTIVE 1, SHUTOFF 1" {
		t.Errorf("on %s are %s, on %s are %s", d.from, from, d.to, to)
	}
	for _, s := range servers {
		if n := migrations(t, s.ID, d.from); n != 1 && s.ID != servers[1].ID {
			t.Errorf("server %s was migrated %d times", s.ID, n)
		}
	}
	d.post(t, d.from, "uncordon", "{}", http.StatusOK)
	if service, err := d.admin.ComputeService(t.Context(), d.from); err != nil || !service.IsEnabled {
		t.Errorf("after uncordon: %+v %v", service, err)
	}
}

// sorts makes of 20 servers 8 that are stopped, one of them locked, one that is paused, one in ERROR, and 10 that run,
// one of them locked. It returns the ids of the special ones.
func (d *drainer) sorts(t *testing.T, servers []domain.Server) map[string]string {
	t.Helper()
	slices.SortFunc(servers, func(a, b domain.Server) int { return a.CreatedAt.Compare(b.CreatedAt) })
	special := map[string]string{
		"paused": servers[8].ID, "error": servers[9].ID, "locked": servers[10].ID, "locked, stopped": servers[0].ID,
	}
	for _, s := range servers[:8] {
		testkit.Act(t, s.ID, map[string]any{"os-stop": nil})
	}
	testkit.Act(t, special["paused"], map[string]any{"pause": nil})
	testkit.Act(t, special["error"], map[string]any{"os-resetState": map[string]any{"state": "error"}})
	testkit.Act(t, special["locked"], map[string]any{"lock": nil})
	testkit.Eventually(t, 2*time.Minute, "8 are stopped and one is paused", func() bool {
		time.Sleep(time.Second)
		return d.count(t, d.from) == "ACTIVE 10, ERROR 1, PAUSED 1, SHUTOFF 8"
	})
	testkit.Act(t, special["locked, stopped"], map[string]any{"lock": nil})
	return special
}

// count says how many servers of each status are on a host.
func (d *drainer) count(t *testing.T, host string) string {
	t.Helper()
	count := map[string]int{}
	for _, s := range d.on(t, host) {
		if s.Task == "" {
			count[s.Status]++
		}
	}
	var texts []string
	for _, status := range slices.Sorted(maps.Keys(count)) {
		texts = append(texts, fmt.Sprintf("%s %d", status, count[status]))
	}
	return strings.Join(texts, ", ")
}

// unchanged checks that the servers have the status on the other host that they had on the first one.
func (d *drainer) unchanged(t *testing.T, special map[string]string) {
	t.Helper()
	if got := d.count(t, d.from); got != "ERROR 1" {
		t.Errorf("on %s are %s", d.from, got)
	}
	if got := d.count(t, d.to); got != "ACTIVE 10, PAUSED 1, SHUTOFF 8" {
		t.Errorf("on %s are %s", d.to, got)
	}
	for name, id := range special {
		s, err := d.admin.Server(t.Context(), id) // a list of Nova 2.1 shows no locks
		if err != nil || s.Locked != strings.HasPrefix(name, "locked") || name == "paused" && s.Status != "PAUSED" {
			t.Errorf("the server %s is %s, locked %t: %v", name, s.Status, s.Locked, err)
		}
	}
}

// TestLongDrain kills watch-nodes at 20 random calls to Nova while it drains a host of 20 servers. Each server moves
// once, and none is left unconfirmed.
func TestLongDrain(t *testing.T) {
	testkit.Heavy(t)
	d := newDrainer(t)
	special := d.sorts(t, testkit.NewProject(t).ServersOn(t, d.from, "drained", 20))
	id, kills := d.drain(t, d.from, 2), 0
	for kills < 20 && !d.get(t, id).DueAt.IsZero() {
		d.killed = make(chan struct{}, 1)
		d.left.Store(1 + rand.Int64N(12))
		d.tick()
		select {
		case <-d.killed:
			kills++
		case <-time.After(20 * time.Second):
			d.left.Store(0)
			d.running.Kill()
		}
		d.start(t)
	}
	d.left.Store(0)
	over := d.ends(t, id)
	moved, left, skipped := over.Counts()
	t.Logf("after %d kills: %d moved, %d are left, %d skipped", kills, moved, left, skipped)
	if over.Status != domain.DrainDone || moved != 19 || left != 0 || skipped != 1 {
		t.Errorf("the drain is %s (%s): %+v", over.Status, over.Reason, over.Servers)
	}
	for _, s := range over.Servers {
		isDone := s.Status == domain.DrainSkipped && s.Reason != ""
		if s.ServerID != special["error"] {
			isDone = s.Status == domain.DrainMoved && s.Target == d.to && migrations(t, s.ServerID, d.from) == 1
		}
		if !isDone {
			t.Errorf("%+v, migrated %d times", s, migrations(t, s.ServerID, d.from))
		}
	}
	d.unchanged(t, special)
	if got := d.events(t, d.from); got != "running  done 19/0/1" {
		t.Errorf("its events are %q", got)
	}
}

// TestNodeMetrics: the metrics of each node have arrived when the tick ends, because the process may end then.
func TestNodeMetrics(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var arrived strings.Builder
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/v1/metrics" {
			arrived.Write(body)
		}
	}))
	defer collector.Close()
	watcher := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{
		"FUNCTION_TARGET": "watch-nodes", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL,
	}))
	if a := watcher.Tick(t, "watch-nodes"); a.Status != http.StatusNoContent {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	watcher.Kill()
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{
		"cloudfn.node.state", "cloudfn.node.schedulable", "cloudfn.node.capacity", "cloudfn.node.used",
		"cloudfn.node.servers", "cloudfn.nodes.drains_running", "compute-1", "suspect", "ram_mb",
	} {
		if !strings.Contains(arrived.String(), want) {
			t.Errorf("%s has not arrived", want)
		}
	}
}
