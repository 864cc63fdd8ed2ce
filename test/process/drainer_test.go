package process_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
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
	maps.Copy(d.env, d.accountBehind(t, "watch-nodes", "NODES_"))
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

// start starts the process, as Knative does after a kill. What a dead one had claimed is free at once, which takes up
// to 45 s otherwise.
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

// cordon disables a host's nova-compute, with a reason.
func (d *drainer) cordon(t *testing.T, host, reason string) {
	t.Helper()
	service, err := d.admin.ComputeService(t.Context(), host)
	if err == nil {
		err = d.admin.DisableService(t.Context(), service.ServiceID, reason)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// enable has somebody let servers onto a host again, past cloudfn.
func (d *drainer) enable(t *testing.T, host string) {
	t.Helper()
	service, err := d.admin.ComputeService(t.Context(), host)
	if err == nil {
		err = d.admin.EnableService(t.Context(), service.ServiceID)
	}
	if err != nil {
		t.Fatal(err)
	}
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

// kill ticks until the process is killed at one of its next calls to Nova, and starts it anew.
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
