//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	pollServers = 1000
	pollChanged = 10 // 1 %
	pollRounds  = 5
	pollDelay   = 5 * time.Millisecond // the sandbox's Nova takes 20 ms and more for a server by its id
)

// TestPoll holds one event of the whole function poll-instances, in a process of its own with Postgres, against one GET
// for each server, on a fake Nova: 1000 tracked servers, and 1 % of them changed since the last poll.
func TestPoll(t *testing.T) {
	fake := newFakeCloud(t, pollServers)
	fake.changed = detailPage(fake.servers[:pollChanged], "")
	fake.usage = map[string][]byte{"": []byte(`{"tenant_usages": []}`)} // of a time before there was a server
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	track(t, conn, fake.servers)
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "poll-instances", "DATABASE_URL": database, "HOST": "127.0.0.1",
		"EVENT_KEY":   testkit.EventKey,
		"OS_AUTH_URL": fake.URL + "/v3", "OS_USERNAME": "poller", "OS_PASSWORD": "secret",
		"OS_USER_DOMAIN_ID": "default",
		"OS_PROJECT_NAME":   "admin", "OS_PROJECT_DOMAIN_ID": "default",
	})
	tick := func() {
		if a := p.Tick(t, "poll-instances"); a.Status != http.StatusNoContent {
			p.Kill()
			t.Fatalf("got %d: %s", a.Status, p.Log())
		}
	}
	tick() // logs in; that is once in an hour
	nova := &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{TokenID: "a-token"}, Endpoint: fake.URL + "/compute/",
	}
	for _, delay := range []time.Duration{0, pollDelay} {
		fake.delay.Store(int64(delay))
		var ours, peer polled
		alternate(pollRounds,
			func() {
				_,
					err := conn.Exec(context.Background(),
					"update instances set state = 'building' where position < $1", pollChanged)
				must(t, err)
				ours.count(fake, tick)
				if moved := testkit.Scalar[int](t, conn,
					"select count(*)::int from instances where state = 'active' and position < $1", pollChanged); moved != pollChanged {
					t.Errorf("%d of %d changes were seen", moved, pollChanged)
				}
			},
			func() {
				peer.count(fake, func() {
					for _, s := range fake.servers {
						_, err := servers.Get(context.Background(), nova, s.id).Extract()
						must(t, err)
					}
				})
			})
		if median(ours.requests) > 10 || median(peer.requests) != pollServers {
			t.Errorf("%.0f requests against %.0f", median(ours.requests), median(peer.requests))
		}
		ours.compare(peer, delay)
	}
}

// polled is what one way took in each round.
type polled struct{ took, requests []float64 }

func (p *polled) count(fake *fakeCloud, call func()) {
	n, _ := fake.count(func() { p.took = append(p.took, timed(call)) })
	p.requests = append(p.requests, float64(n))
}

func (p *polled) compare(peer polled, delay time.Duration) {
	name := fmt.Sprintf("poll %d servers, %d changed (fake Nova), ", pollServers, pollChanged)
	number := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	line := func(what string, we, they []float64, show func(float64) string, goal target) {
		report(result{
			number: "8", name: name + what + " : one GET each", ours: show(median(we)), peer: show(median(they)),
			ratio: median(we) / median(they), target: goal,
		})
	}
	if delay == 0 {
		line("requests", p.requests, peer.requests, number, atMost(1.0/100))
		line("time, our work alone", p.took, peer.took, showMS, shown)
		return
	}
	line(fmt.Sprintf("time, when Nova takes %s for an answer", delay), p.took, peer.took, showMS, atMost(1.0/20))
}

// track makes an instance of each server, as it stands.
func track(t *testing.T, conn *pgx.Conn, servers []fakeServer) {
	t.Helper()
	rows := make([][]any, len(servers))
	for i, s := range servers {
		rows[i] = []any{s.project, i, s.id, "active", "ACTIVE"}
	}
	ctx := context.Background()
	_,
		err := conn.Exec(ctx,
		"alter table instances alter id set default gen_random_uuid(), alter name set default 'x', alter origin set default 'connected'")
	must(t, err)
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"instances"}, []string{
		"project_id", "position", "server_id", "state", "raw_status",
	}, pgx.CopyFromRows(rows))
	must(t, err)
}

const (
	roundProjects = 1000
	roundDelay    = 150 * time.Millisecond
	roundEvent    = 20 * time.Second // two or three events for a round
)

// manyProjects is Keystone and Nova for an account that may read each project, and not the whole cloud. Each
// answer takes roundDelay. The token of a project is its id.
type manyProjects struct {
	*httptest.Server

	mu      sync.Mutex
	reading map[string]int
	read    map[string]bool
	all     chan struct{} // is closed when every project was read
	twice   int           // reads of a project that was being read
}

func newManyProjects(t *testing.T) *manyProjects {
	t.Helper()
	m := &manyProjects{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v3/auth/tokens", m.login)
	mux.HandleFunc("GET /compute/servers/detail", m.list)
	mux.HandleFunc("GET /compute/os-simple-tenant-usage/{project}", func(w http.ResponseWriter, _ *http.Request) {
		m.answer(w, http.StatusOK, `{"tenant_usage": {}}`)
	})
	m.Server = httptest.NewServer(mux)
	t.Cleanup(m.Close)
	return m
}

func (m *manyProjects) answer(w http.ResponseWriter, status int, body string) {
	time.Sleep(roundDelay)
	m.write(w, status, body)
}

func (m *manyProjects) write(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

func (m *manyProjects) login(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Auth struct {
			Scope struct{ Project struct{ ID string } }
		}
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	project := body.Auth.Scope.Project.ID
	if project == "" {
		project = "own"
	}
	w.Header().Set("X-Subject-Token", project)
	expires := time.Now().UTC().Add(time.Hour).Format("2006-01-02T15:04:05.000000Z")
	m.answer(w, http.StatusCreated, fmt.Sprintf(`{"token": {"expires_at": "%s", "user": {"id": "u", "name": "poller"}, "project": {"id": "%s", "name": "p", "domain": {"id": "default"}},
		"roles": [{"name": "reader"}], "catalog": [{"type": "compute", "name": "nova", "id": "1", "endpoints": [
		{"id": "2", "interface": "public", "region_id": "one", "region": "one", "url": "%s/compute"}]}]}}`, expires, project, m.URL))
}

func (m *manyProjects) list(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("all_tenants") {
		m.answer(w, http.StatusForbidden, `{"forbidden": {"code": 403, "message": "Policy doesn't allow it."}}`)
		return
	}
	project := r.Header.Get("X-Auth-Token")
	m.begun(project)
	select {
	case <-r.Context().Done(): // the event that asked has ended, and the next one may ask again at once
	case <-time.After(roundDelay):
	}
	m.ended(project, r.Context().Err() == nil)
	m.write(w, http.StatusOK, `{"servers": []}`)
}

func (m *manyProjects) begun(project string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reading[project]++; m.reading[project] > 1 {
		m.twice++
	}
}

func (m *manyProjects) ended(project string, whole bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reading[project]--
	if !whole || m.read[project] {
		return
	}
	if m.read[project] = true; len(m.read) == roundProjects {
		close(m.all)
	}
}

// begin forgets what was read.
func (m *manyProjects) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reading, m.read, m.all = map[string]int{}, map[string]bool{}, make(chan struct{})
}

// TestRound holds a round of poll-instances over all projects by two processes against one by one: both begin
// without any token, and each event goes on where the one before stopped. That no project is read twice at once,
// and that no instance counts as unknown, is asserted.
func TestRound(t *testing.T) {
	fake, database := newManyProjects(t), testkit.Database(t)
	conn := testkit.Connect(t, database)
	_, err := conn.Exec(context.Background(), `
insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, seen_at)
select 'p' || n, gen_random_uuid(), 0, 'x', gen_random_uuid()::text, 'active', 'ACTIVE', 'connected', now() from generate_series(1, $1::int) n`, roundProjects)
	must(t, err)
	env := map[string]string{
		"FUNCTION_TARGET": "poll-instances", "DATABASE_URL": database, "DATABASE_MAX_CONNS": "2", "HOST": "127.0.0.1",
		"EVENT_KEY":   testkit.EventKey,
		"OS_AUTH_URL": fake.URL + "/v3", "OS_USERNAME": "poller", "OS_PASSWORD": "secret",
		"OS_USER_DOMAIN_ID": "default",
		"OS_PROJECT_NAME":   "own", "OS_PROJECT_DOMAIN_ID": "default",
		"LOG_LEVEL":     "WARN",
		"EVENT_TIMEOUT": roundEvent.String(),
	}
	round := func(replicas int) float64 {
		fake.begin()
		var processes []*testkit.Process
		for range replicas {
			processes = append(processes, testkit.Spawn(t, env))
		}
		took := timed(func() {
			for _, p := range processes {
				go func() {
					for {
						if _, err := p.TryTick(t, "poll-instances"); err != nil {
							return // it was killed
						}
					}
				}()
				time.Sleep(10 * roundDelay) // it learns that it may not list the whole cloud
			}
			<-fake.all
		})
		for _, p := range processes {
			p.Kill()
		}
		if fake.twice > 0 {
			t.Errorf("%d replicas read a project that was being read %d times", replicas, fake.twice)
		}
		// As time would: what the killed processes had claimed is free.
		_, err := conn.Exec(context.Background(), "update polls set claimed_until = null")
		must(t, err)
		return took
	}
	one, two := round(1), round(2)
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from instances where state <> 'active'"); n > 0 {
		t.Errorf("%d instances are not active any more", n)
	}
	seconds := func(v float64) string { return strings.TrimSpace(fmt.Sprintf("%.0f s", v/1000)) }
	report(result{
		number: "11", name: fmt.Sprintf("round over %d projects at %s a call (fake Nova), two replicas : one replica",
			roundProjects, roundDelay),
		ours: seconds(two), peer: seconds(one), ratio: two / one, target: atMost(0.6),
	})
}
