package runconnections

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fakeCloud is another cloud's Keystone and Nova, as far as its servers are followed. It is a fake: the sandbox is one
// cloud, answers always, and lists its requests to nobody. Each application credential has a project of its own, with
// the credential's id.
type fakeCloud struct {
	url  string
	page int // servers in a page, at most

	mu       sync.Mutex
	servers  []fakeServer
	requests []string
	hangs    chan struct{} // no request is answered before it is closed; nil = all are
	stuck    []string      // projects that Nova answers nothing, before ended is closed
	ended    chan struct{}
	timeouts []string // requests of stuck projects whose client did not wait any longer
	away     []string // projects to which Nova answers 503
	changed  func()   // called after each answer to changes-since
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
		isAway := slices.Contains(f.away, r.Header.Get("X-Auth-Token"))
		f.mu.Unlock()
		if isAway && r.URL.Path != "/compute/" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if isStuck && r.URL.Path != "/compute/" { // which nobody needs a token for
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
