package httpx

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
			asked := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/inner", nil)
			asked.Header.Set("X-Auth-Token", tc.inner)
			w := httptest.NewRecorder()
			api.ServeHTTP(w, asked)
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
