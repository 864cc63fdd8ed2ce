package httpx

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestRouter prefers literal segments from left to right, and keeps what each path permits.
func TestRouter(t *testing.T) {
	t.Parallel()
	var routes []Route
	for _, pattern := range []string{
		"GET /s/{id}", "PATCH /s/{id}", "GET /s/history/{id}", "GET /s/{id}/console", "POST /s/{id}/console",
		"POST /s/actions", "GET /f/{kind}/{name}", "POST /f/{kind}/{name}/undo",
	} {
		routes = append(routes, Route{Pattern: pattern})
	}
	r := newRouter(routes)
	for _, tc := range []struct{ request, want, id, allow string }{
		{request: "GET /s/1", want: "GET /s/{id}", id: "1"},
		{request: "GET /s/1/console", want: "GET /s/{id}/console", id: "1"},
		{request: "HEAD /s/1/console", want: "GET /s/{id}/console", id: "1"},
		{request: "POST /s/1/console", want: "POST /s/{id}/console", id: "1"},
		{request: "GET /s/history/console", want: "GET /s/history/{id}", id: "console"},
		{request: "POST /s/history/console", want: "POST /s/{id}/console", id: "history"},
		{request: "POST /s/actions", want: "POST /s/actions"},
		{request: "PUT /s/1/console", allow: "GET, HEAD, POST"},
		{request: "PUT /s/history/1", allow: "GET, HEAD"},
		{request: "PUT /f/a/b/undo", allow: "POST"},
		{request: "GET /s/1/nothing"},
		{request: "GET /f/a/b", want: "GET /f/{kind}/{name}"},
	} {
		method, path, _ := strings.Cut(tc.request, " ")
		x := r.find(httptest.NewRequest(method, path, nil))
		got, status := "", x.status
		if x.route != nil {
			got = x.route.Pattern
		}
		if got != tc.want || x.request.PathValue("id") != tc.id || x.header.Get("Allow") != tc.allow {
			t.Errorf("%s: got %q, %q, %d %v", tc.request, got, x.request.PathValue("id"), status, x.header)
		}
		if isAbsent := tc.want == "" && tc.allow == ""; isAbsent != (status == http.StatusNotFound) {
			t.Errorf("%s: got %d", tc.request, status)
		}
	}
}

// streaming is a route whose answer is a Stream.
func streaming(stream Stream) Route {
	return Handle("GET /x", func(*http.Request) (Response, error) {
		return Response{Status: http.StatusOK, ContentType: "text/csv", Stream: stream}, nil
	})
}

func fetch(t *testing.T, method, url string) (status int, body string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// TestStream: the row is there before the first byte, and HEAD makes none.
func TestStream(t *testing.T) {
	t.Parallel()
	j, calls := &recorder{}, 0
	server := serve(t, j.edge(), streaming(func(ctx context.Context, w io.Writer) error {
		calls++
		j.mu.Lock()
		defer j.mu.Unlock()
		if len(j.rows) != 1 || j.rows[0].Status != http.StatusOK {
			t.Errorf("when the body begins the rows are %+v", j.rows)
		}
		if _, ok := ctx.Deadline(); !ok {
			t.Error("a stream has no deadline")
		}
		for range 1000 {
			if _, err := io.WriteString(w, strings.Repeat("x", 99)+"\n"); err != nil {
				return err
			}
		}
		return nil
	}))
	if status, body, err := fetch(t, http.MethodGet, server.URL); status != 200 || len(body) != 100_000 || err != nil {
		t.Errorf("got %d, %d bytes, %v", status, len(body), err)
	}
	if status, body, err := fetch(t, http.MethodHead, server.URL); status != 200 || body != "" || err != nil ||
		calls != 1 {
		t.Errorf("HEAD: got %d %q, %v, after %d calls", status, body, err, calls)
	}
}

// TestStreamBreaksOff: the client gets an error, and never a part for the whole; also behind what makes an answer of a
// panic.
func TestStreamBreaksOff(t *testing.T) {
	t.Parallel()
	j := &recorder{}
	server := serve(t, j.edge(), streaming(func(_ context.Context, w io.Writer) error {
		_, _ = io.WriteString(w, "a,b\r\n")
		return errors.New("postgres is unavailable")
	}))
	handler := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				_, _ = io.WriteString(w, "it panicked")
			}
		}()
		handler.ServeHTTP(w, r)
	})
	if status, body, err := fetch(t, http.MethodGet, server.URL); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %d %q, %v", status, body, err)
	}
	if len(j.rows) != 1 {
		t.Errorf("the rows are %+v", j.rows)
	}
}

// TestStreamWithoutARow is a problem: nothing of it was sent.
func TestStreamWithoutARow(t *testing.T) {
	t.Parallel()
	j := &recorder{record: apperr.New(apperr.Unavailable, "the request log cannot be written")}
	server := serve(t, j.edge(), streaming(func(context.Context, io.Writer) error {
		t.Error("it was sent without its row")
		return nil
	}))
	if status, body, err := fetch(t, http.MethodGet, server.URL); status != 503 ||
		!strings.Contains(body, "the request log") || err != nil {
		t.Errorf("got %d %q, %v", status, body, err)
	}
}

// TestStreamWithoutEnd ends when its time is up.
func TestStreamWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		edge, ended := (&recorder{}).edge(), make(chan error, 1)
		client := inMemory(t, edge.Handler([]Route{streaming(func(ctx context.Context, w io.Writer) error {
			for {
				if _, err := io.WriteString(w, "x\n"); err != nil || ctx.Err() != nil {
					ended <- errors.Join(err, ctx.Err())
					return errors.Join(err, ctx.Err())
				}
				time.Sleep(time.Second)
			}
		})}), func(c net.Conn) net.Conn { return c })
		resp, err := client.Get("http://x/x")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("a stream without an end ended well")
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended by %v", err)
		}
	})
}

// TestRowOfWhatWasActed: the row says through which connection the request acted, also when it is refused.
func TestRowOfWhatWasActed(t *testing.T) {
	t.Parallel()
	c := domain.Connection{ID: [16]byte{1}, ProjectID: "owner", DomainID: "d2"}
	for method, fail := range map[string]error{
		http.MethodGet: nil, http.MethodPost: apperr.New(apperr.Forbidden, "no"),
	} {
		j := &recorder{}
		server := serve(t, j.edge(), Handle(method+" /x", func(r *http.Request) (struct{}, error) {
			domain.RecordConnection(r.Context(), c)
			return struct{}{}, fail
		}))
		if _, _, err := fetch(t, method, server.URL); err != nil {
			t.Fatal(err)
		}
		want := domain.UsedConnection{ConnectionID: c.ID, ProjectID: "owner", DomainID: "d2"}
		if len(j.rows) != 1 || j.rows[0].Used != want || j.rows[0].ProjectID != "p1" {
			t.Errorf("%s: the rows are %+v", method, j.rows)
		}
	}
}

var offered = []string{"application/json", "image/svg+xml", "text/html"}

func TestNegotiate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		accept []string
		want   string // "" is 406
	}{
		"nothing said":     {nil, "application/json"},
		"empty":            {[]string{""}, "application/json"},
		"white space":      {[]string{"  "}, "application/json"},
		"anything":         {[]string{"*/*"}, "application/json"},
		"one":              {[]string{"image/svg+xml"}, "image/svg+xml"},
		"in upper case":    {[]string{"TEXT/HTML"}, "text/html"},
		"with a parameter": {[]string{"text/html;charset=utf-8"}, "text/html"},
		"a family":         {[]string{"image/*"}, "image/svg+xml"},
		"a browser": {
			[]string{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"},
			"text/html",
		},
		"an img of a browser": {
			[]string{"image/avif,image/webp,image/svg+xml,image/*;q=0.8,*/*;q=0.5"}, "image/svg+xml",
		},
		"curl":                      {[]string{"*/*"}, "application/json"},
		"weighed":                   {[]string{"application/json;q=0.5, text/html;q=0.6"}, "text/html"},
		"equals: the first offered": {[]string{"text/html, application/json"}, "application/json"},
		"several headers":           {[]string{"text/plain", "text/html"}, "text/html"},
		"anything but":              {[]string{"application/json;q=0, */*"}, "image/svg+xml"},
		"the precise decides": {
			[]string{"*/*, text/*;q=0.9, application/json;q=0.1, image/*;q=0.2"}, "text/html",
		},
		"nothing that there is": {[]string{"text/plain"}, ""},
		"nothing at all":        {[]string{"*/*;q=0"}, ""},
		"refused by name":       {[]string{"text/html;q=0"}, ""},
		"garbage":               {[]string{";;;,,,/"}, ""},
		"garbage and one":       {[]string{"///, text/html"}, "text/html"},
		"no number":             {[]string{"text/html;q=x, application/json;q=0.1"}, "application/json"},
		"not a weight":          {[]string{"text/html;q=NaN, application/json;q=0.1"}, "application/json"},
		"below nothing":         {[]string{"text/html;q=-1, application/json;q=0.1"}, "application/json"},
		// no weight at all (RFC 9110, 12.4.2)
		"more than all": {[]string{"text/html;q=5, application/json;q=0.1"}, "application/json"},
		"infinite":      {[]string{"text/html;q=Inf, application/json;q=0.1"}, "application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := with("")
			r.Header["Accept"] = tc.accept
			got, err := Negotiate(r, offered...)
			if got != tc.want {
				t.Errorf("got %q %v", got, err)
			}
			if e := apperr.As(err); tc.want == "" && (e.Code != apperr.NotAcceptable ||
				!slices.Equal(e.Fields[0].Allowed, offered)) {
				t.Errorf("got %v %+v", err, e.Fields)
			}
		})
	}
}

// FuzzNegotiate holds it to its word: one of what is offered or 406, and qualities from 0 to 1.
func FuzzNegotiate(f *testing.F) {
	for _, seed := range []string{
		"", "*/*", "text/html;q=0.5, */*;q=0.1", "a/b;c=\"d,e\"", ";q=", "text/html;q=1e309", "image/*;q=-0",
		"text/html;q=0.3;q=0.4",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		r := with("")
		r.Header.Set("Accept", accept)
		got, err := Negotiate(r, offered...)
		if err == nil && !slices.Contains(offered, got) || err != nil && apperr.CodeOf(err) != apperr.NotAcceptable {
			t.Errorf("got %q %v", got, err)
		}
		for _, kind := range offered {
			if q := quality(accept, kind); !(q >= 0 && q <= 1) {
				t.Errorf("%s has quality %v", kind, q)
			}
		}
	})
}

// TestIfMatch: what proxies make of a tag that we gave is still the version.
func TestIfMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		given []string
		want  bool
	}{
		{nil, true},
		{[]string{`"3"`}, true},
		{[]string{`W/"3"`}, true},
		{[]string{`"3-gzip"`}, true},
		{[]string{`W/"3--gzip"`}, true},
		{[]string{`"1", "3"`}, true},
		{[]string{`"1"`, `W/"3"`}, true},
		{[]string{"*"}, true},
		{[]string{`"4"`}, false},
		{[]string{`W/"33"`}, false},
		{[]string{`"30-gzip"`}, false},
		{[]string{"3"}, false},
		{[]string{`"`}, false},
		{[]string{"W/"}, false},
		{[]string{","}, false},
	} {
		r := &http.Request{Header: http.Header{"If-Match": c.given}}
		ctx := context.WithValue(t.Context(), callKey{}, &call{request: r})
		if got := IfMatch(ctx, "lease")(3) == nil; got != c.want {
			t.Errorf("If-Match: %q matches version 3: %t, want %t", c.given, got, c.want)
		}
	}
	if v := VersionsOf(&http.Request{}, "If-None-Match"); v != nil || v.Has(ETag(0)) {
		t.Errorf("without a header there are the versions %q", v)
	}
}
