package httpx

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestLimits: a request over a limit costs neither Keystone nor a row, whatever its path. A known token's address is
// not limited, so those who share an address with a flood go on; probes never are.
func TestLimits(t *testing.T) {
	t.Parallel()
	limit := apperr.Limit{Name: "address", Quota: 500, Window: 10 * time.Second}
	over := limit.Exceeded("this address", 2500*time.Millisecond)
	served := func(token string) []string { return []string{"ready", "authenticate " + token, "handler", "record"} }
	unknown := []string{"ready", "authenticate tok"}
	for name, tc := range map[string]struct {
		path, token, source string
		status              int
		steps               []string
		project             string // of what is counted
	}{
		"an address":                  {"/private/1", "tok", "192.0.2.1", 429, nil, ""},
		"an address, a public route":  {"/public", "", "192.0.2.1", 429, nil, ""},
		"an address, nothing there":   {"/nothing", "", "192.0.2.1", 429, nil, ""},
		"an address, a known token":   {"/private/1", "known", "192.0.2.1", 200, served("known"), ""},
		"an address, a probe":         {"/probe", "", "192.0.2.1", 200, []string{"handler"}, ""},
		"an address, healthz":         {"/healthz", "", "192.0.2.1", 200, nil, ""},
		"a project":                   {"/private/1", "known", "p1", 429, nil, "p1"},
		"a project, a public route":   {"/public", "known", "p1", 429, nil, "p1"},
		"a project, nothing there":    {"/nothing", "known", "p1", 429, nil, "p1"},
		"a project, with a new token": {"/private/1", "tok", "p1", 429, unknown, "p1"},
		"another project":             {"/private/1", "tok", "p2", 200, served("tok"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := &recorder{limited: map[string]error{tc.source: over}}
			w := j.get(tc.path, http.Header{"X-Auth-Token": {tc.token}})
			if diff := cmp.Diff(tc.steps, j.steps); diff != "" || w.Code != tc.status {
				t.Fatalf("got %d, steps %s", w.Code, diff)
			}
			if tc.status == 200 {
				if len(j.refused) != 0 {
					t.Errorf("counted %+v", j.refused)
				}
				return
			}
			problem(t, w)
			for header, want := range map[string]string{
				"Retry-After": "3", "RateLimit": `"address";r=0;t=3`, "RateLimit-Policy": `"address";q=500;w=10`,
			} {
				if got := w.Header().Get(header); got != want {
					t.Errorf("%s is %q, want %q", header, got, want)
				}
			}
			if len(j.refused) != 1 || j.refused[0].Status != 429 || j.refused[0].Code != "rate_limited" ||
				j.refused[0].ProjectID != tc.project || j.refused[0].Remote != "192.0.2.1" {
				t.Errorf("counted %+v", j.refused)
			}
		})
	}
}

// TestPauseOfOpenStack is no limit of ours: the request has a row, and the answer no RateLimit.
func TestPauseOfOpenStack(t *testing.T) {
	t.Parallel()
	j := &recorder{auth: apperr.New(apperr.RateLimited, "keystone: wait")}
	w := j.get("/private/1", http.Header{"X-Auth-Token": {"tok"}})
	if w.Code != 429 || w.Header().Get("RateLimit") != "" || len(j.rows) != 1 || len(j.refused) != 0 {
		t.Errorf("got %d %v with %d rows, %d counted", w.Code, w.Header(), len(j.rows), len(j.refused))
	}
}

// TestLimitsOfHandlers: a request with a token, whose handler may have called OpenStack before a limit refused it, has
// a row of its own. On a public route it shares one.
func TestLimitsOfHandlers(t *testing.T) {
	t.Parallel()
	for name, isPublic := range map[string]bool{"private": false, "public": true} {
		j := &recorder{}
		route := Handle("GET /x", func(*http.Request) (Response, error) {
			return Response{}, apperr.PerMinute("launch", 1).Exceeded("this project", time.Second)
		})
		route.Public = isPublic
		w := httptest.NewRecorder()
		j.edge().Handler([]Route{route}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/x", nil))
		if w.Code != 429 || w.Header().Get("RateLimit-Policy") != `"launch";q=1;w=60` ||
			len(j.refused) == 1 != isPublic || len(j.rows) == 1 == isPublic {
			t.Errorf("%s: got %d %v with %d rows, %d counted", name, w.Code, w.Header(), len(j.rows), len(j.refused))
		}
	}
}

// TestInnerRequests: what a handler requests of another function in this process is not counted again, but for a
// project that was not known before.
func TestInnerRequests(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		outer, inner string // tokens
		want         []string
	}{
		"known":              {"known", "known", []string{"p1"}},
		"known outside only": {"known", "tok", []string{"p1"}},
		"known inside only":  {"tok", "known", []string{"192.0.2.1", "p1"}},
		"not known":          {"tok", "tok", []string{"192.0.2.1", "p1"}},
	} {
		j := &recorder{}
		var api http.Handler
		routes := j.routes()
		console := Handle("GET /console", func(r *http.Request) (Response, error) {
			inner := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/private/1", nil)
			inner.Header.Set("X-Auth-Token", tc.inner)
			w := httptest.NewRecorder()
			api.ServeHTTP(w, inner)
			return Response{Status: w.Code, Relayed: true}, nil
		})
		console.Public = true
		api = j.edge().Handler(append(routes, console))
		r := httptest.NewRequest(http.MethodGet, "/console", nil)
		r.Header.Set("X-Auth-Token", tc.outer)
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		if diff := cmp.Diff(tc.want, j.taken); diff != "" || w.Code != http.StatusOK {
			t.Errorf("%s: got %d, taken %s", name, w.Code, diff)
		}
	}
}

// TestInFlight: a source that has too many requests in flight gets 429, whether they wait in the handler or for the
// client to read. Others go on.
func TestInFlight(t *testing.T) {
	t.Parallel()
	j := &recorder{most: 2}
	entered, leave := make(chan struct{}), make(chan struct{})
	wait := func(_ context.Context, w io.Writer) error {
		entered <- struct{}{}
		<-leave
		_, err := io.WriteString(w, "whole")
		return err
	}
	api := j.edge().Handler([]Route{
		Handle("GET /x", func(*http.Request) (Response, error) { return Response{Status: 200, Stream: wait}, nil }),
		Handle("GET /quick", func(*http.Request) (Response, error) { return Response{Status: 200}, nil }),
	})
	get := func(path, token string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
		r.Header.Set("X-Auth-Token", token)
		api.ServeHTTP(w, r)
		return w
	}
	ended := make(chan struct{})
	for range 2 {
		go func() { get("/x", "known"); ended <- struct{}{} }()
		<-entered
	}
	for _, token := range []string{"known", "tok"} { // the project is known before authentication, and after it
		w := get("/quick", token)
		problem(t, w)
		for header, want := range map[string]string{
			"Retry-After": "1", "RateLimit": `"in-flight";r=0;t=1`,
			"RateLimit-Policy": `"in-flight";q=2;qu="concurrent-requests"`,
		} {
			if got := w.Header().Get(header); w.Code != 429 || got != want {
				t.Errorf("%s: got %d, %s is %q, want %q", token, w.Code, header, got, want)
			}
		}
	}
	if len(j.refused) != 2 || j.refused[0].ProjectID != "p1" || j.refused[1].ProjectID != "p1" {
		t.Errorf("counted %+v", j.refused)
	}
	if w := get("/nothing", ""); w.Code != 404 {
		t.Errorf("another source: got %d", w.Code)
	}
	close(leave)
	<-ended
	<-ended
	if w := get("/quick", "known"); w.Code != 200 {
		t.Errorf("after the others: got %d", w.Code)
	}
}

// TestInFlightEnds with every request, however it ends.
func TestInFlightEnds(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		path   string
		token  string
		auth   error
		stream Stream
	}{
		"served":               {path: "/private/1"},
		"a known token":        {path: "/private/1", token: "known"},
		"a public route":       {path: "/public"},
		"a probe":              {path: "/probe"},
		"nothing there":        {path: "/nothing"},
		"rejected":             {path: "/private/1", auth: broken},
		"a panic":              {path: "/panic"},
		"a stream":             {path: "/x", stream: func(context.Context, io.Writer) error { return nil }},
		"a stream that breaks": {path: "/x", stream: func(context.Context, io.Writer) error { return broken }},
		"a stream that panics": {path: "/x", stream: func(context.Context, io.Writer) error { panic(broken) }},
		"the client hangs up": {path: "/x", stream: func(ctx context.Context, _ io.Writer) error {
			<-ctx.Done()
			return ctx.Err()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := &recorder{auth: tc.auth}
			api := j.edge().Handler(append(j.routes(), streaming(tc.stream)))
			ctx, hangUp := context.WithCancel(t.Context())
			hangUp()
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, tc.path, nil)
			r.Header.Set("X-Auth-Token", tc.token)
			func() {
				defer func() { _ = recover() }() // net/http does so
				api.ServeHTTP(httptest.NewRecorder(), r)
			}()
			for source, n := range j.inFlight {
				if n != 0 {
					t.Errorf("%s has %d requests in flight", source, n)
				}
			}
		})
	}
}

// TestInnerRequestsInFlight: what a handler requests of another function in this process is its request in flight. It
// counts for one source at a time: for its project as soon as that is known.
func TestInnerRequestsInFlight(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		outer, inner string // tokens
		want         map[string]int
	}{
		"known":              {"known", "known", map[string]int{"p1": 1}},
		"known outside only": {"known", "tok", map[string]int{"p1": 1}},
		"known inside only":  {"tok", "known", map[string]int{"192.0.2.1": 0, "p1": 1}},
		"not known":          {"tok", "tok", map[string]int{"192.0.2.1": 0, "p1": 1}},
	} {
		j := &recorder{most: 1}
		var api http.Handler
		var during map[string]int
		inner := Handle("GET /inner", func(*http.Request) (struct{}, error) {
			during = maps.Clone(j.inFlight)
			return struct{}{}, nil
		})
		outer := Handle("GET /outer", func(r *http.Request) (Response, error) {
			inner := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/inner", nil)
			inner.Header.Set("X-Auth-Token", tc.inner)
			w := httptest.NewRecorder()
			api.ServeHTTP(w, inner)
			return Response{Status: w.Code, Relayed: true}, nil
		})
		outer.Public = true
		api = j.edge().Handler([]Route{inner, outer})
		r, w := httptest.NewRequest(http.MethodGet, "/outer", nil), httptest.NewRecorder()
		r.Header.Set("X-Auth-Token", tc.outer)
		api.ServeHTTP(w, r)
		if diff := cmp.Diff(tc.want, during); diff != "" || w.Code != http.StatusOK || j.inFlight["p1"] != 0 {
			t.Errorf("%s: got %d, in flight %s", name, w.Code, diff)
		}
	}
}
