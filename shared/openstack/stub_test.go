package openstack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// stub is a fake of OpenStack, for faults that the real one cannot be made to show: its Keystone gives a catalog
// in which every service is the stub itself. What is right about OpenStack is tested against the real one.
type stub struct {
	url string
	mux *http.ServeMux

	mu    sync.Mutex
	calls []*http.Request
}

const (
	theToken = "canary-token"
	reqID    = "req-11111111-2222-4333-8444-555555555555"

	keystoneDocument = `{"version":{"id":"v3.14","status":"stable","links":[{"rel":"self","href":"http://k/v3/"}]}}`
)

func newStub(t *testing.T) *stub {
	t.Helper()
	s := &stub{mux: http.NewServeMux()}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // all of it, so that the server notices when the client hangs up
		call := r.Clone(context.WithoutCancel(r.Context()))
		call.Body = io.NopCloser(bytes.NewReader(body))
		s.mu.Lock()
		s.calls = append(s.calls, call)
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json") // without it gophercloud's pager takes no answer
		s.mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	s.url = server.URL
	s.answer("GET /v3/{$}", 200, keystoneDocument)
	s.answer("GET /v3/auth/catalog", 200, s.catalog("compute", "network", "image"))
	return s
}

// catalog lists the services at /{type} of the stub, in one region.
func (s *stub) catalog(types ...string) string {
	var entries []string
	for _, kind := range types {
		entries = append(entries,
			fmt.Sprintf(`{"type":%[1]q,"endpoints":[{"interface":"public","region_id":"r1","url":"%[2]s/%[1]s"},{"interface":"admin","region_id":"r1","url":"http://127.0.0.1:1"}]}`, kind, s.url))
	}
	return `{"catalog":[` + strings.Join(entries, ",") + `]}`
}

// answer has the stub give the same answer each time.
func (s *stub) answer(pattern string, status int, body string) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60") // a read is not tried again then
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

// to lists the requests for a path.
func (s *stub) to(path string) []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*http.Request
	for _, r := range s.calls {
		if r.URL.Path == path {
			list = append(list, r)
		}
	}
	return list
}

func (s *stub) cloud(t *testing.T, change func(*Config)) *Cloud {
	t.Helper()
	cfg := Config{AuthURL: s.url, Interface: "public"}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg, Options{RequestID: func(context.Context) string { return reqID }})
	if err != nil {
		t.Fatal(err)
	}
	c.versions.Add(s.url+"/compute/", discovered{s.url + "/compute/", time.Now()}) // its versions are not read
	t.Cleanup(c.Close)
	return c
}

func (s *stub) session(t *testing.T) *Session {
	t.Helper()
	return s.cloud(t, nil).As(theToken, "p1")
}

// create is a call that is never repeated.
func create(ctx context.Context, s *Session) error {
	_, err := s.CreateServer(ctx, domain.LaunchSpec{FlavorID: "f", ImageID: "i"}, "n", "", nil)
	return err
}

// read is a call that may be repeated.
func read(ctx context.Context, s *Session) error {
	_, err := s.Server(ctx, "id")
	return err
}

// list is a read of a page.
func list(ctx context.Context, s *Session) error {
	_, _, err := s.Servers(ctx, domain.ServerQuery{Limit: 10})
	return err
}

// bubbled is a Cloud whose answers are made by fn, without any network: for use in a bubble of
// testing/synctest.
func bubbled(t *testing.T, fn func(*http.Request) (*http.Response, error)) *Cloud {
	t.Helper()
	c, err := New(Config{AuthURL: "http://keystone/v3", Interface: "public"}, Options{
		Wrap: func(http.RoundTripper) http.RoundTripper { return roundTripper(fn) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (fn roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return fn(r) }

// response is an answer out of nowhere.
func response(status int, header map[string]string, body string) *http.Response {
	h := http.Header{}
	for k, v := range header {
		h.Set(k, v)
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
}

// bodyOf reads what was sent as JSON.
func bodyOf(t *testing.T, r *http.Request) map[string]any {
	t.Helper()
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		t.Error(err)
	}
	return body
}

// TestEveryCallSaysWhoAsks: the caller's token, the request's id, and the microversion where there is one.
func TestEveryCallSaysWhoAsks(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/servers/id", 200, `{"server":{"id":"id"}}`)
	s.answer("GET /image/v2/images/id", 200, `{"id":"id"}`)
	session := s.session(t)
	if err := read(t.Context(), session); err != nil {
		t.Error(err)
	}
	if _, err := session.Image(t.Context(), "id"); err != nil {
		t.Error(err)
	}
	if len(s.calls) != 3 {
		t.Errorf("there were %d calls", len(s.calls))
	}
	for _, r := range s.calls {
		want := []string{theToken, reqID}
		if got := []string{r.Header.Get("X-Auth-Token"), r.Header.Get("X-Openstack-Request-Id")}; !slices.Equal(got,
			want) {
			t.Errorf("%s: got %v", r.URL, got)
		}
	}
	if got := s.to("/compute/servers/id")[0].Header.Get("X-Openstack-Nova-Api-Version"); got != computeServerGroups {
		t.Errorf("the microversion is %q", got)
	}
}

const member = `"user":{"id":"u1","name":"joe"},"project":{"id":"p1","name":"web","domain":{"id":"d1"}},"roles":[{"name":"reader"},{"name":"member"}]`

// loginStub answers every login with the token's body.
func loginStub(t *testing.T, body string) *stub {
	t.Helper()
	s := newStub(t)
	s.mux.HandleFunc("POST /v3/auth/tokens", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Subject-Token", theToken)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"token":{` + body + `,` + strings.TrimPrefix(s.catalog("compute"), "{") + `}`))
	})
	return s
}

func catalogOf(t *testing.T, text string) catalog {
	t.Helper()
	var c catalog
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func nova500(class string) string {
	return `{"computeFault": {"code": 500, "message": "Unexpected API Error. Please report this at http://bugs.launchpad.net/nova/ and attach the Nova API log if possible.\n<class '` + class + `'>"}}`
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(code)
	}
}

// pages has a path answer with the page that a marker stands for.
func (s *stub) pages(pattern string, byMarker map[string]string) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		page, ok := byMarker[r.URL.Query().Get("marker")]
		if !ok {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = w.Write([]byte(page))
	})
}

// offering is a session whose catalog is the one in a body of Keystone's.
func (s *stub) offering(t *testing.T, body string) *Session {
	t.Helper()
	var found struct {
		Catalog catalog `json:"catalog"`
	}
	if err := json.Unmarshal([]byte(body), &found); err != nil {
		t.Fatal(err)
	}
	cloud := s.cloud(t, nil)
	cloud.catalogs.Add("p1", found.Catalog)
	return cloud.As(theToken, "p1")
}
