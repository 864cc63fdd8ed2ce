package runconnections

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongOrderInOtherCloud uses the sandbox under another URL, which makes it another cloud. Its servers are followed
// to their end. Their state is unknown while that cloud is unavailable, and after the connection has ended.
func TestLongOrderInOtherCloud(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var unavailable atomic.Bool
	keystone, _ := testkit.Intercept(t, strings.TrimSuffix(testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, "/"),
		func(*http.Request) {
			if unavailable.Load() {
				panic(http.ErrAbortHandler)
			}
		})
	elsewhere := testkit.RedirectTo(t, map[string]string{"compute": keystone})
	c := w.credential(t, elsewhere.URL())
	p := w.function(t, nil)
	order := w.finish(t, p, w.place(t, c, 2, nil).ID)
	if order.Status != domain.OrderDone || !order.Instances[0].Remote {
		t.Fatalf("the order is %s: %+v", order.Status, order.Instances)
	}
	gone, kept := order.Instances[0], order.Instances[1]
	polls := postgres.Polls{DB: w.db}
	if err := polls.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if followed, err := polls.ListFollowed(t.Context()); err != nil || len(followed) != 0 {
		t.Errorf("poll-instances follows %+v %v", followed, err)
	}
	now := func() { w.exec(t, "update connections set read_at = null, swept_at = null") }
	w.Delete(t, gone.ServerID)
	w.Stop(t, kept.ServerID)
	now()
	tick(t, p)
	w.ends(t, gone.ID, "active") // it may be back
	w.ends(t, kept.ID, "active stopped")
	w.exec(t, "update instances set missed_at = missed_at - interval '1 minute'")
	now()
	tick(t, p)
	w.ends(t, gone.ID, "active deleted")

	unavailable.Store(true)
	now()
	tick(t, p)
	w.ends(t, kept.ID, "active stopped")
	if got := w.text(t, "select failures::text || (silent_since is not null)::text from connections"); got != "1true" {
		t.Errorf("a cloud that is unavailable is recorded as %s", got)
	}
	w.exec(t, "update connections set silent_since = silent_since - interval '4 minutes', not_before = null")
	w.exec(t, "update instances set seen_at = seen_at - interval '4 minutes'")
	now()
	tick(t, p)
	w.ends(t, kept.ID, "stopped unknown")
	unavailable.Store(false)
	w.exec(t, "update connections set not_before = null")
	now()
	tick(t, p)
	w.ends(t, kept.ID, "unknown stopped")
	if got := w.text(t, "select failures::text || (silent_since is not null)::text from connections"); got != "0false" {
		t.Errorf("a cloud that is back is recorded as %s", got)
	}

	wants(t, w.done(t, p, w.act(t, c, kept.ID, domain.ActionRequest{Action: domain.Start}, nil)), "")
	ticks(t, p, "the started server is observed",
		func() bool { return strings.HasSuffix(w.eventsOf(t, kept.ID), "updating active") })
	if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, c.ID, domain.ConnectionDeleted, "",
		true); err != nil {
		t.Fatal(err)
	}
	tick(t, p)
	w.ends(t, kept.ID, "active unknown")
}

// fakeCloud is another cloud's Keystone and Nova, as far as its servers are followed. It is a fake: the sandbox is one
// cloud, answers always, and lists its requests to no one. Each application credential has a project of its own, with
// the credential's id.
type fakeCloud struct {
	url  string
	page int // servers in a page, at most

	mu          sync.Mutex
	servers     []fakeServer
	requests    []string
	hangs       chan struct{} // no request is answered before it is closed; nil = all are
	stuck       []string      // projects that Nova answers nothing, before ended is closed
	ended       chan struct{}
	timeouts    []string // requests of stuck projects whose client did not wait any longer
	unavailable []string // projects to which Nova answers 503
	changed     func()   // called after each answer to changes-since
}

type fakeServer struct{ project, id, status string }

func newFakeCloud(t *testing.T) *fakeCloud {
	t.Helper()
	f := &fakeCloud{page: 1000, ended: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v3/auth/tokens", f.login)
	mux.HandleFunc("GET /compute/servers/detail", f.list)
	mux.HandleFunc("GET /compute/servers/{id}", f.get)
	mux.HandleFunc("GET /compute/flavors/detail", func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = fmt.Fprint(w, `{"flavors":[]}`)
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r.Method+" "+r.URL.RequestURI())
		hangs := f.hangs
		isStuck := slices.Contains(f.stuck, r.Header.Get("X-Auth-Token"))
		isDown := slices.Contains(f.unavailable, r.Header.Get("X-Auth-Token"))
		f.mu.Unlock()
		if isDown && r.URL.Path != "/compute/" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if isStuck && r.URL.Path != "/compute/" { // which no one needs a token for
			select {
			case <-f.ended:
			case <-r.Context().Done():
				f.mu.Lock()
				f.timeouts = append(f.timeouts, r.Method+" "+r.URL.Path)
				f.mu.Unlock()
			}
			panic(http.ErrAbortHandler)
		}
		if hangs != nil {
			<-hangs
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// hang has the cloud take requests and answer none, until the returned function is called.
func (f *fakeCloud) hang(t *testing.T) (end func()) {
	t.Helper()
	f.hangs = make(chan struct{})
	end = sync.OnceFunc(func() { close(f.hangs) })
	t.Cleanup(end)
	return end
}

func (f *fakeCloud) login(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Auth struct {
			Identity struct {
				Credential struct {
					ID string `json:"id"`
				} `json:"application_credential"`
			} `json:"identity"`
		} `json:"auth"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	project := body.Auth.Identity.Credential.ID
	w.Header().Set("X-Subject-Token", project)
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"token":{"expires_at":%q,"user":{"id":"u"},"project":{"id":%q,"domain":{"id":"d"}},
"catalog":[{"type":"compute","endpoints":[{"interface":"public","region_id":"r","url":"%s/compute"}]}]}}`,
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339), project, f.url)
}

// list answers a page of the project's servers; every one has changed since any moment unless it is ACTIVE.
func (f *fakeCloud) list(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changes := r.URL.Query().Has("changes-since")
	shown := slices.DeleteFunc(slices.Clone(f.servers), func(s fakeServer) bool {
		return s.project != r.Header.Get("X-Auth-Token") || changes && s.status == "ACTIVE" || !changes &&
			s.status == "DELETED"
	})
	if after := slices.IndexFunc(shown,
		func(s fakeServer) bool { return s.id == r.URL.Query().Get("marker") }); after >= 0 {
		shown = shown[after+1:]
	}
	links := "[]"
	if len(shown) > f.page {
		shown, links = shown[:f.page], `[{"rel":"next","href":"http://nova"}]`
	}
	texts := make([]string, len(shown))
	for n, s := range shown {
		texts[n] = s.json()
	}
	_, _ = fmt.Fprintf(w, `{"servers":[%s],"servers_links":%s}`, strings.Join(texts, ","), links)
	if changes && f.changed != nil && !r.URL.Query().Has("marker") {
		f.changed()
	}
}

func (f *fakeCloud) get(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.servers {
		if s.id == r.PathValue("id") {
			_, _ = fmt.Fprintf(w, `{"server":%s}`, s.json())
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
	_, _ = fmt.Fprint(w, `{"itemNotFound":{"code":404,"message":"no such server"}}`)
}

func (s fakeServer) json() string {
	return fmt.Sprintf(`{"id":%q,"name":"remote","status":%q,"tenant_id":%q,"created":"2026-01-01T00:00:00Z","updated":"2026-01-01T00:00:00Z"}`,
		s.id, s.status, s.project)
}

// set gives the server another status.
func (f *fakeCloud) set(id, status string) {
	n := slices.IndexFunc(f.servers, func(s fakeServer) bool { return s.id == id })
	f.servers[n].status = status
}

// count is how many requests hold the text, but for those of a second page and later ones.
func (f *fakeCloud) count(text string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, request := range f.requests {
		if strings.Contains(request, text) && !strings.Contains(request, "marker=") {
			n++
		}
	}
	return n
}

// remote is a connection to the fake cloud.
func (w *world) remote(t *testing.T, f *fakeCloud) domain.Connection {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	c := domain.Connection{
		ID: id, ProjectID: w.ID, DomainID: w.DomainID, UserID: "u", Kind: domain.CredentialConnection,
		DelegationID: id.String(), AuthURL: f.url, Actions: everything, UsableBy: []string{},
		Flavors: []domain.Flavor{}, ExpiresAt: time.Now().Add(time.Hour),
		ActsAs: domain.ActsAs{ProjectID: id.String()},
	}
	c.Secret = sealed(t, c.SealedFor(), "secret")
	stored, err := postgres.Connections{DB: w.db}.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// runs makes a server in the fake cloud with a status, and tracks it through the connection in a state.
func (w *world) runs(
	t *testing.T, f *fakeCloud, c domain.Connection, status string, state domain.InstanceState,
) (instance uuid.UUID, server string) {
	t.Helper()
	instance, server = uuid.New(), uuid.NewString()
	f.mu.Lock()
	f.servers = append(f.servers, fakeServer{c.ActsAs.ProjectID, server, status})
	f.mu.Unlock()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, raw_status, origin,
  connection_id, remote)
values ($1, $2, 0, 'remote', $3, $4, $4, 'connected', $5, true)`, w.ID, instance, server, state, c.ID)
	return instance, server
}

// fakes is a database of a project whose servers are all in fake clouds.
func fakes(t *testing.T) *world {
	t.Helper()
	w := &world{Project: &testkit.Project{ID: uuid.NewString(), DomainID: "d"}, database: testkit.Database(t)}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(w.database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	w.db = db
	return w
}

// TestLongEveryConnectionIsFollowed within one tick, of ten to four clouds, although the cloud of the four oldest takes
// requests and never answers. Meanwhile an action through one of the others is done, too.
func TestLongEveryConnectionIsFollowed(t *testing.T) {
	t.Parallel()
	w := fakes(t)
	hanging := newFakeCloud(t)
	end := hanging.hang(t)
	clouds := []*fakeCloud{hanging, newFakeCloud(t), newFakeCloud(t), newFakeCloud(t)}
	var stopped []uuid.UUID
	var last domain.Connection
	for n := range 10 {
		cloud := hanging
		if n >= 4 {
			cloud = clouds[1+n%3]
		}
		if last = w.remote(t, cloud); cloud == hanging {
			w.runs(t, cloud, last, "SHUTOFF", domain.InstanceActive)
			continue
		}
		instance, _ := w.runs(t, cloud, last, "SHUTOFF", domain.InstanceActive)
		stopped = append(stopped, instance)
	}
	p := w.function(t, nil)
	var tick sync.WaitGroup
	tick.Go(func() { _, _ = p.TryTick(t, "run-connections") })
	start := time.Now()
	for _, instance := range stopped {
		testkit.Eventually(t, 15*time.Second, "the server is observed as stopped",
			func() bool { return w.eventsOf(t, instance) == "stopped" })
	}
	t.Logf("%d healthy connections were followed within %s", len(stopped), time.Since(start))
	// there is nothing to do
	stop := w.act(t, last, stopped[len(stopped)-1], domain.ActionRequest{Action: domain.Stop}, nil)
	testkit.Eventually(t, 15*time.Second, "the action is done",
		func() bool { return w.action(t, stop).Status == domain.ActionDone })
	for n, cloud := range clouds[1:] {
		if lists, logins := cloud.count("/servers/detail"), cloud.count("/auth/tokens"); lists != 2 || logins != 2 {
			t.Errorf("cloud %d of 2 connections: %d lists and %d logins", n+1, lists, logins)
		}
	}
	end()
	tick.Wait()
	if got := w.text(t, `select count(*)::text from connections where silent_since is not null and failures = 1`); got != "4" {
		t.Errorf("%s connections of the cloud that hangs are recorded as silent", got)
	}
}

// TestLongMovingServerOfAnotherCloud: while Nova is at work on one of a thousand servers, only what changed is read.
func TestLongMovingServerOfAnotherCloud(t *testing.T) {
	t.Parallel()
	w := fakes(t)
	cloud := newFakeCloud(t)
	cloud.page = 500
	c := w.remote(t, cloud)
	for range 999 {
		cloud.servers = append(cloud.servers, fakeServer{c.ActsAs.ProjectID, uuid.NewString(), "ACTIVE"})
	}
	moving, server := w.runs(t, cloud, c, "BUILD", domain.InstanceBuilding)
	gone, deleted := w.runs(t, cloud, c, "ACTIVE", domain.InstanceActive)
	changes := 0
	cloud.changed = func() {
		if changes++; changes == 2 {
			cloud.set(deleted, "DELETED")
			cloud.set(server, "SHUTOFF")
		}
	}
	tick(t, w.function(t, nil))
	w.ends(t, moving, "stopped")
	w.ends(t, gone, "deleted")
	if all, changed := cloud.count("/servers/detail")-cloud.count("changes-since"),
		cloud.count("changes-since"); all != 1 || changed != 3 {
		t.Errorf("all servers were read %d times, and those that changed %d times", all, changed)
	}
}

// TestLongStuckCloudDelaysNoOther: while connections wait for services that do not answer, another connection to the
// same cloud completes its action, and its servers are read. The cloud is a fake, because the sandbox cannot hang for
// one project only.
func TestLongStuckCloudDelaysNoOther(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 3, 6} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			w, f := fakes(t), newFakeCloud(t)
			defer close(f.ended)
			for range n {
				c := w.remote(t, f)
				instance, _ := w.runs(t, f, c, "SHUTOFF", domain.InstanceStopped)
				w.act(t, c, instance, domain.ActionRequest{Action: domain.Stop}, nil)
				f.stuck = append(f.stuck, c.ActsAs.ProjectID)
			}
			healthy := w.remote(t, f)
			instance, _ := w.runs(t, f, healthy, "SHUTOFF", domain.InstanceActive)
			// so the healthy connection is the last to be read
			w.exec(t, "update connections set read_at = clock_timestamp() where id = $1", healthy.ID)
			p := w.function(t, nil)
			go func() { _, _ = p.TryTick(t, "run-connections") }()
			if n > 0 {
				testkit.Eventually(t, time.Minute, "the others are stuck",
					func() bool { return f.count("/compute/flavors") >= min(n, poolSize) })
			}
			stop := w.act(t, healthy, instance, domain.ActionRequest{Action: domain.Stop}, nil)
			w.exec(t, "update connections set read_at = null where id = $1", healthy.ID)
			testkit.Eventually(t, time.Minute, "the action has ended",
				func() bool { return w.action(t, stop).Status != domain.ActionRunning })
			testkit.Eventually(t, time.Minute, "the server is read",
				func() bool { return w.eventsOf(t, instance) != "" })
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, request := range f.timeouts {
				if strings.Contains(request, "/compute/servers/") {
					t.Errorf("it had to wait until %s timed out", request)
				}
			}
		})
	}
}
