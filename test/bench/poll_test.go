//go:build bench

package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
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
	db := newRig(t)
	track(db, fake.servers)
	p := db.function("poll-instances", fake.URL, nil)
	poll := func() { tick(t, p, "poll-instances") }
	poll() // logs in; that is once in an hour
	nova := &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{TokenID: "a-token"}, Endpoint: fake.URL + "/compute/",
	}
	for _, delay := range []time.Duration{0, pollDelay} {
		fake.delay.Store(int64(delay))
		var ours, peer polled
		alternate(pollRounds,
			func() {
				db.run("update instances set state = 'building' where position < $1", pollChanged)
				ours.count(fake, poll)
				const movedSQL = "select count(*)::int from instances where state = 'active' and position < $1"
				if moved := db.count(movedSQL, pollChanged); moved != pollChanged {
					t.Errorf("%d of %d changes were stored", moved, pollChanged)
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
	line := func(what string, we, they []float64, show func(float64) string, goal target) {
		compare("8", name+what+" : one GET each", median(we), median(they), show, goal)
	}
	if delay == 0 {
		line("requests", p.requests, peer.requests, showCount, atMost(1.0/100))
		line("time, our work alone", p.took, peer.took, showMS, shown)
		return
	}
	line(fmt.Sprintf("time, when Nova takes %s for an answer", delay), p.took, peer.took, showMS, atMost(1.0/20))
}

// track makes an instance of each server, as it stands.
func track(db rig, servers []fakeServer) {
	rows := make([][]any, len(servers))
	for i, s := range servers {
		rows[i] = []any{s.project, i, s.id, "active", "ACTIVE"}
	}
	db.run(`alter table instances alter id set default gen_random_uuid(), alter name set default 'x',
		alter origin set default 'connected'`)
	columns := []string{"project_id", "position", "server_id", "state", "raw_status"}
	_, err := db.CopyFrom(context.Background(), pgx.Identifier{"instances"}, columns, pgx.CopyFromRows(rows))
	must(db.t, err)
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
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func (m *manyProjects) login(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Auth struct {
			Scope struct{ Project struct{ ID string } }
		}
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	project := cmp.Or(body.Auth.Scope.Project.ID, "own")
	w.Header().Set("X-Subject-Token", project)
	m.answer(w, http.StatusCreated, string(tokenOf(m.URL, project, "reader")))
}

func (m *manyProjects) list(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("all_tenants") {
		m.answer(w, http.StatusForbidden, `{"forbidden": {"code": 403, "message": "Policy doesn't allow it."}}`)
		return
	}
	project := r.Header.Get("X-Auth-Token")
	m.begun(project)
	select {
	case <-r.Context().Done(): // its event has ended, and the next one may read it again
	case <-time.After(roundDelay):
	}
	m.ended(project, r.Context().Err() == nil)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"servers": []}`)
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
// without any token, and each event goes on where the one before stopped. That no project is read twice concurrently,
// and that no instance counts as unknown, is asserted.
func TestRound(t *testing.T) {
	fake, db := newManyProjects(t), newRig(t)
	db.run(`
insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, seen_at)
select 'p' || n, gen_random_uuid(), 0, 'x', gen_random_uuid()::text, 'active', 'ACTIVE', 'connected', now()
from generate_series(1, $1::int) n`, roundProjects)
	env := map[string]string{
		"DATABASE_MAX_CONNS": "2", "LOG_LEVEL": "WARN",
		"EVENT_TIMEOUT": roundEvent.String(),
	}
	round := func(replicas int) float64 {
		fake.begin()
		var processes []*testkit.Process
		for range replicas {
			processes = append(processes, db.function("poll-instances", fake.URL, env))
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
		db.run("update polls set claimed_until = null")
		return took
	}
	one, two := round(1), round(2)
	if n := db.count("select count(*)::int from instances where state <> 'active'"); n > 0 {
		t.Errorf("%d instances are not active any more", n)
	}
	seconds := func(v float64) string { return strings.TrimSpace(fmt.Sprintf("%.0f s", v/1000)) }
	name := fmt.Sprintf("round over %d projects at %s a call (fake Nova), two replicas : one replica", roundProjects,
		roundDelay)
	compare("11", name, two, one, seconds, atMost(0.6))
}

const (
	remoteClouds  = 10 // besides the one that hangs
	remoteEach    = 10 // connections to each
	remoteServers = 100
	remoteRounds  = 3
	remoteDelay   = 20 * time.Millisecond // what a Nova takes for an answer
)

// TestRemote compares one event of the function run-connections, in a process of its own with Postgres, with reading
// one connection after the other: a hundred connections to ten fake clouds. Ten older ones are to a cloud that takes
// requests and never answers. The sequential reader leaves these out, because it would never reach the next one.
func TestRemote(t *testing.T) {
	db, hanging := newRig(t), newHangingCloud(t)
	for range remoteEach {
		connectTo(db, hanging.URL, nil)
	}
	clouds := make([]*fakeCloud, remoteClouds)
	for n := range clouds {
		clouds[n] = newFakeCloud(t, remoteServers)
		clouds[n].delay.Store(int64(remoteDelay))
		for range remoteEach {
			connectTo(db, clouds[n].URL, clouds[n].servers)
		}
	}
	p := db.function("run-connections", clouds[0].URL, map[string]string{
		"CONNECTION_PRIVATE_KEY": testkit.ConnectionPrivateKey, "OS_PROJECT_NAME": "", "OS_PROJECT_DOMAIN_ID": "",
	})
	count := func() (requests float64) {
		for _, cloud := range clouds {
			requests += float64(cloud.requests.Swap(0))
		}
		return requests
	}
	const all = remoteClouds * remoteEach
	var ours, peer polled
	alternate(remoteRounds,
		func() {
			db.run("update connections set read_at = null, swept_at = null, not_before = null")
			release := hanging.hang()
			count()
			var tick sync.WaitGroup
			ours.took = append(ours.took, timed(func() {
				tick.Go(func() { _, _ = p.TryTick(t, "run-connections") })
				testkit.Eventually(t, 30*time.Second, "all but those of the cloud that hangs are read", func() bool {
					return db.count("select count(*)::int from connections where swept_at is not null") == all
				})
			}))
			ours.requests = append(ours.requests, count())
			release()
			tick.Wait()
		},
		func() {
			count()
			peer.took = append(peer.took, timed(func() {
				for _, cloud := range clouds {
					nova := &gophercloud.ServiceClient{
						ProviderClient: &gophercloud.ProviderClient{TokenID: "a-token"},
						Endpoint:       cloud.URL + "/compute/",
					}
					for range remoteEach {
						pages, err := servers.List(nova, servers.ListOpts{}).AllPages(context.Background())
						must(t, err)
						_, err = servers.ExtractServers(pages)
						must(t, err)
					}
				}
			}))
			peer.requests = append(peer.requests, count())
		})
	name := fmt.Sprintf("follow %d connections to %d clouds, %d more to one that hangs (fake Novas of %s), ", all,
		remoteClouds, remoteEach, remoteDelay)
	compare("12", name+"time until all are read : one list after the other", median(ours.took), median(peer.took),
		showMS, atMost(1.0/2))
	compare("12", name+"requests : one list after the other", median(ours.requests), median(peer.requests), showCount,
		shown)
}

// connectTo stores a connection of a project of its own to a cloud, with an instance of each server.
func connectTo(db rig, url string, servers []fakeServer) {
	t, store := db.t, db.open(1, nil)
	defer store.Close()
	id := uuid.Must(uuid.NewV7())
	c := domain.Connection{
		ID: id, ProjectID: id.String(), DomainID: "d", UserID: "u", Kind: domain.CredentialConnection,
		DelegationID: id.String(), AuthURL: url,
		Actions: []domain.Permission{domain.MayConnect}, UsableBy: []string{}, Flavors: []domain.Flavor{},
		ExpiresAt: time.Now().Add(time.Hour),
		ActsAs:    domain.ActsAs{ProjectID: "p"},
	}
	key, err := seal.ParsePublicKey(testkit.ConnectionPublicKey)
	must(t, err)
	c.Secret, err = key.Seal(c.SealedFor(), "secret")
	must(t, err)
	_, err = postgres.Connections{DB: store}.Create(context.Background(), c)
	must(t, err)
	ids := []string{"hidden"}
	for _, s := range servers {
		ids = append(ids, s.id)
	}
	db.run(`
insert into instances (project_id, id, position, name, server_id, state, origin, connection_id, remote)
select $1, gen_random_uuid(), 0, 'x', s, 'active', 'connected', $2, true from unnest($3::text[]) s`, c.ProjectID, c.ID, ids[min(1, len(servers)):])
}

// hangingCloud takes requests and answers none before it is released: then it breaks the connection.
type hangingCloud struct {
	*httptest.Server
	mu    sync.Mutex
	until chan struct{}
}

func newHangingCloud(t *testing.T) *hangingCloud {
	t.Helper()
	h := &hangingCloud{until: make(chan struct{})}
	h.Server = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		h.mu.Lock()
		until := h.until
		h.mu.Unlock()
		<-until
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hangingCloud) hang() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	until := make(chan struct{})
	h.until = until
	return sync.OnceFunc(func() { close(until) })
}
