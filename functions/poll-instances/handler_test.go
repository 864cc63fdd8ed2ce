package pollinstances

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// outboxRow is an event as it is stored.
type outboxRow struct {
	Seq  int
	Type string
	Data struct {
		InstanceID    string `json:"instance_id"`
		ServerID      string `json:"server_id"`
		OrderID       string `json:"order_id"`
		ChangedAt     string `json:"changed_at"`
		Reconstructed bool
		Name          string
		State         string
		PreviousState string `json:"previous_state"`
		Status        string
		Addresses     []struct{ IP string }

		UnexpectedServerID string `json:"unexpected_server_id"`
		Fault              *struct{ Code, Detail string }
	}
}

// world is a project with tracked instances, and a database.
type world struct {
	*testkit.Project
	database  string
	network   string // of its servers; "" = the sandbox's
	order     string
	instances []string // their ids
	servers   []string // their servers' ids
}

// launched has an order of n placed by the function launch, and waits until Nova has made the servers.
func launched(t *testing.T, n int) *world {
	t.Helper()
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	w.launch(t, n)
	for _, id := range w.servers {
		w.Await(t, id, "ACTIVE")
		w.Quiet(t, id)
	}
	return w
}

// launch places an order.
func (w *world) launch(t *testing.T, n int) {
	t.Helper()
	f := testkit.Sandbox(t)
	p := testkit.Spawn(t, testkit.Env(t, w.database, map[string]string{"FUNCTION_TARGET": "launch"})).As(w.Token(t))
	a := p.Post(t, "/v1/launch", fmt.Sprintf(`{"name":"polled","flavor":%q,"image":%q,"networks":[%q],"count":%d}`,
		f.FlavorID, f.ImageID, f.NetworkID, n))
	if a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	var order struct {
		ID        string
		Instances []struct {
			ID       string
			ServerID string `json:"server_id"`
		}
	}
	a.JSON(t, &order)
	w.order = order.ID
	for _, i := range order.Instances {
		w.instances, w.servers = append(w.instances, i.ID), append(w.servers, i.ServerID)
	}
}

// once is less than any pause between two polls: an event polls once.
const once = time.Nanosecond

// poller is a replica of the function in this process, whose events poll again for as long as follow; 0 = as always.
func (w *world) poller(t *testing.T, more map[string]string, follow time.Duration) *testkit.Client {
	t.Helper()
	f := Function
	f.Build = func(cfg Config, d run.Deps) (eventx.Func, error) {
		cfg.Follow = follow
		return build(cfg, d)
	}
	return testkit.Start(t, testkit.Env(t, w.database, more), f)
}

func tick(t *testing.T, p *testkit.Client, want int) {
	t.Helper()
	if a := p.Tick(t, "poll-instances"); a.Status != want {
		t.Fatalf("got %d %s, want %d", a.Status, a.Body, want)
	}
}

// events are those of a subject, in their order.
func (w *world) events(t *testing.T, subject string) []outboxRow {
	t.Helper()
	rows, _ := testkit.Pool(t, w.database).Query(context.Background(),
		"select seq, type, data from events where project_id = $1 and subject = $2 order by seq", w.ID, subject)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e outboxRow, err error) {
		var data []byte
		if err := row.Scan(&e.Seq, &e.Type, &data); err != nil {
			return e, err
		}
		return e, json.Unmarshal(data, &e.Data)
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// states are the states of a subject's events, with Nova's own words.
func (w *world) states(t *testing.T, subject string) string {
	t.Helper()
	var states []string
	for _, e := range w.events(t, subject) {
		states = append(states, strings.TrimSuffix(e.Data.State+"/"+e.Data.Status, "/"))
	}
	return strings.Join(states, " ")
}

func (w *world) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := testkit.Pool(t, w.database).Exec(context.Background(), sql); err != nil {
		t.Fatal(err)
	}
}

// ends checks that the states in a subject's events end like this.
func (w *world) ends(t *testing.T, subject, want string) {
	t.Helper()
	if got := w.states(t, subject); !strings.HasSuffix(got, want) {
		t.Errorf("the events report %q, want an end of %q", got, want)
	}
}

// TestLongChangesByOthers: the next tick reports what the openstack client did to servers, by both ways to read.
func TestLongChangesByOthers(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	for _, account := range []string{"collector", "admin"} {
		t.Run(account, func(t *testing.T) {
			w := launched(t, 2)
			p := w.poller(t, map[string]string{"OS_CLOUD": account}, 0)
			tick(t, p, 204)
			for _, id := range w.instances {
				w.ends(t, id, "building/BUILD active/ACTIVE")
			}
			w.orderEnds(t, "done")
			before := len(w.events(t, w.instances[0]))
			w.Act(t, w.servers[0], "stop")
			w.Await(t, w.servers[0], "SHUTOFF")
			tick(t, p, 204)
			events := w.events(t, w.instances[0])
			last := events[len(events)-1]
			if d := last.Data; len(events) != before+1 || last.Type != "cloudfn.instance.state.v1" ||
				d.State != "stopped" || d.PreviousState != "active" || d.Status != "SHUTOFF" ||
				d.InstanceID != w.instances[0] || d.ServerID != w.servers[0] || d.OrderID != w.order ||
				d.Name != "polled-1" || len(d.Addresses) == 0 {
				t.Errorf("after %d events came %+v", before, events[before:])
			}
			testkit.OpenStack(t, "admin", "server", "delete", "--wait", w.servers[0])
			w.Act(t, w.servers[1], "break")
			tick(t, p, 204)
			w.ends(t, w.instances[0], "stopped/SHUTOFF deleted/DELETED")
			w.ends(t, w.instances[1], "active/ACTIVE error/ERROR")
			testkit.OpenStack(t, "admin", "server", "set", "--state", "active", w.servers[1])
			tick(t, p, 204)
			w.ends(t, w.instances[1], "error/ERROR active/ACTIVE")
			events = w.events(t, w.instances[1])
			for range 2 { // nothing happened since
				tick(t, p, 204)
			}
			if diff := cmp.Diff(events, w.events(t, w.instances[1])); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTickFollowsMovingInstances while Nova is at work, so that one tick tells of a launch from its begin to its end,
// and no longer.
func TestTickFollowsMovingInstances(t *testing.T) {
	t.Parallel()
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	w.launch(t, 2)
	b := newBetween(t)
	// a sandbox with much to do takes longer than 45s
	p := w.poller(t, b.env, 90*time.Second)
	tick(t, p, 204)
	for n, id := range w.instances {
		w.ends(t, id, "active/ACTIVE")
		if e := w.events(t, id); len(e[len(e)-1].Data.Addresses) == 0 {
			t.Errorf("instance %d has no address", n)
		}
	}
	b.requests()
	tick(t, p, 204)
	reads := slices.DeleteFunc(b.requests(), func(uri string) bool {
		return !strings.Contains(uri, "changes-since") || strings.Contains(uri, "marker=") // a second page
	})
	if len(reads) != 1 {
		t.Errorf("with nothing to wait for it read %v", reads)
	}
}

// TestLongPages: Nova gives its changes, and all of its servers, in pages of two. The limit is put into the requests on
// their way; the pages are Nova's own. A list ends at an empty page.
func TestLongPages(t *testing.T) {
	t.Parallel()
	w := launched(t, 5)
	b := newBetween(t)
	b.before = limitTo2
	p := w.poller(t, b.env, 0)
	tick(t, p, 204)
	for _, id := range w.instances {
		w.ends(t, id, "active/ACTIVE")
	}
	changes, all := 0, 0
	b.requests()
	w.exec(t, "update polls set full_at = full_at - interval '1 hour'")
	for _, id := range w.servers[:3] {
		w.Stop(t, id)
	}
	tick(t, p, 204)
	for n, id := range w.instances {
		w.ends(t, id, map[bool]string{true: "stopped/SHUTOFF", false: "active/ACTIVE"}[n < 3])
	}
	for _, path := range b.requests() {
		switch {
		case strings.Contains(path, "changes-since"):
			changes++
		case strings.Contains(path, "/servers/detail"):
			all++
		}
	}
	if changes < 3 || all != 4 { // the last one is empty
		t.Errorf("%d pages of changes, %d of all servers, want 3 or 4, and 4", changes, all)
	}
}

// TestPassedStates: a server is stopped, started and rebooted between two ticks. The states in between are published
// in their order, once, although two replicas are woken, and marked as reconstructed.
func TestPassedStates(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	p, other := w.poller(t, nil, once), w.poller(t, nil, once)
	tick(t, p, 204)
	w.ends(t, w.instances[0], "active/ACTIVE")
	before := len(w.events(t, w.instances[0]))
	id := w.servers[0]
	time.Sleep(time.Second) // Nova logs whole seconds, and what began in the second of the last read is known already
	w.Stop(t, id)
	w.Act(t, id, "start")
	w.Await(t, id, "ACTIVE")
	w.Quiet(t, id)
	w.Act(t, id, "hard")
	w.Quiet(t, id)
	w.Await(t, id, "ACTIVE")
	var all sync.WaitGroup
	for _, p := range []*testkit.Client{p, other, p} {
		all.Go(func() { tick(t, p, 204) })
	}
	all.Wait()
	var got []string
	for n, e := range w.events(t, w.instances[0])[before:] {
		if e.Seq != before+n+1 || (e.Data.ChangedAt != "") != e.Data.Reconstructed {
			t.Errorf("event %d: %+v", n, e)
		}
		got = append(got, fmt.Sprintf("%s %s %t", e.Data.PreviousState, e.Data.State, e.Data.Reconstructed))
	}
	want := []string{"active stopped true", "stopped active true", "active rebooting true", "rebooting active false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
