package httpx

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // every request has its line
	m.Run()
}

// recorder records the steps of an Edge in order, and can fail each of them.
type recorder struct {
	mu                  sync.Mutex
	steps               []string
	rows                []domain.Request
	ready, auth, record error
	limited             map[string]error // by source
	taken               []string         // sources
	refused             []domain.Request
	inFlight            map[string]int // by source
	most                int            // of each; 0 = any number
}

// Client implements Limits.
func (j *recorder) Client(*http.Request) string { return "192.0.2.1" }

// TakeAddress implements Limits.
func (j *recorder) TakeAddress(address string) error { return j.take(address) }

// TakeProject implements Limits.
func (j *recorder) TakeProject(id string) error { return j.take(id) }

func (j *recorder) take(source string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.taken = append(j.taken, source)
	return j.limited[source]
}

// EnterAddress implements Limits.
func (j *recorder) EnterAddress(address string) (func(), error) { return j.enter(address) }

// EnterProject implements Limits.
func (j *recorder) EnterProject(id string) (func(), error) { return j.enter(id) }

func (j *recorder) enter(source string) (leave func(), err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.most > 0 && j.inFlight[source] >= j.most {
		return nil, apperr.Limit{Name: "in-flight", Quota: j.most}.Exceeded("this source", 0)
	}
	if j.inFlight == nil {
		j.inFlight = map[string]int{}
	}
	j.inFlight[source]++
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.inFlight[source]--
	}, nil
}

func (j *recorder) note(step string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.steps = append(j.steps, step)
}

func (j *recorder) edge() Edge {
	return Edge{
		Authenticate: func(ctx context.Context, r *http.Request) (context.Context, error) {
			j.note("authenticate " + r.Header.Get("X-Auth-Token"))
			return context.WithValue(ctx, whoKey{}, domain.Identity{UserID: "u1", ProjectID: "p1", DomainID: "d1"}),
				j.auth
		},
		Caller: func(ctx context.Context) domain.Identity {
			who, _ := ctx.Value(whoKey{}).(domain.Identity)
			return who
		},
		Ready: func(context.Context) error { j.note("ready"); return j.ready },
		Record: func(ctx context.Context, row domain.Request) error {
			j.note("record")
			j.mu.Lock()
			defer j.mu.Unlock()
			j.rows = append(j.rows, row)
			return errors.Join(j.record, ctx.Err()) // what is recorded is so whatever became of the request
		},
		Limits: j, Known: func(h http.Header) (domain.Identity, bool) {
			if h.Get("X-Auth-Token") != "known" {
				return domain.Identity{}, false
			}
			return domain.Identity{UserID: "u1", ProjectID: "p1"}, true
		},
		CountRefused: func(row domain.Request) { j.refused = append(j.refused, row) },
		KeystoneURL:  "https://keystone.example.com/v3", Timeout: 5 * time.Second,
	}
}

// routes are one of each kind: private, public and a probe.
func (j *recorder) routes() []Route {
	answer := func(*http.Request) (map[string]string, error) {
		j.note("handler")
		return map[string]string{"answer": "from the <handler>"}, nil
	}
	private, public, probe := Handle("GET /private/{id}", answer), Handle("GET /public", answer),
		Handle("GET /probe", answer)
	private.Function, public.Public, probe.Public, probe.Probe = "things", true, true, true
	panics := Handle("GET /panic", func(*http.Request) (Response, error) { panic("canary-internals") })
	fails := Handle("GET /fail", func(*http.Request) (Response, error) {
		return Response{}, errors.New("canary-internals")
	})
	return []Route{private, public, probe, panics, fails}
}

func (j *recorder) get(path string, header http.Header) *httptest.ResponseRecorder {
	return j.do(httptest.NewRequest(http.MethodGet, path, nil), header)
}

func (j *recorder) do(r *http.Request, header http.Header) *httptest.ResponseRecorder {
	maps.Copy(r.Header, header)
	w := httptest.NewRecorder()
	j.edge().Handler(j.routes()).ServeHTTP(w, r)
	return w
}

type whoKey struct{}

// problem reads an error answer and holds it to what every one must be.
func problem(t *testing.T, w *httptest.ResponseRecorder) Problem {
	t.Helper()
	var p Problem
	dec := json.NewDecoder(w.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("the answer is no problem: %v", err)
	}
	if w.Header().Get("Content-Type") != ProblemType || p.Type != "about:blank" || p.Status != w.Code ||
		p.Title == "" || p.Detail == "" ||
		p.Code == "" || p.RequestID != w.Header().Get("X-Request-Id") || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("got %d %v %+v", w.Code, w.Header(), p)
	}
	return p
}

// serve serves routes over TCP.
func serve(t *testing.T, edge Edge, routes ...Route) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(edge.Handler(routes))
	t.Cleanup(server.Close)
	return server
}

// inMemory is the client of a server in memory, as synctest requires. It has one connection at a time, which wrap may
// change on the server's side.
func inMemory(t *testing.T, api http.Handler, wrap func(net.Conn) net.Conn) *http.Client {
	t.Helper()
	conns := serveInMemory(t, api)
	dial := func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		conns <- wrap(server)
		return client, nil
	}
	transport := &http.Transport{MaxConnsPerHost: 1, DialContext: dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// serveInMemory serves the connections that are sent to it until the end of the test.
func serveInMemory(t *testing.T, api http.Handler) chan<- net.Conn {
	t.Helper()
	conns := make(pipeListener)
	server := &http.Server{Handler: api}
	go func() { _ = server.Serve(conns) }()
	t.Cleanup(func() { _ = server.Close() })
	return conns
}

// pipeListener accepts connections in memory, as synctest requires.
type pipeListener chan net.Conn

// Accept implements net.Listener.
func (l pipeListener) Accept() (net.Conn, error) {
	if conn, ok := <-l; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l pipeListener) Close() error { close(l); return nil }

// Addr implements net.Listener.
func (l pipeListener) Addr() net.Addr { return &net.TCPAddr{} }
