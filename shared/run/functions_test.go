package run

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// TestFunctionsAt: a function that runs alone needs the URL of the others; the daemon serves all.
func TestFunctionsAt(t *testing.T) {
	t.Parallel()
	if _, err := (Functions{alone: true}).At("X_UPSTREAM", ""); err == nil ||
		!strings.HasPrefix(err.Error(), "X_UPSTREAM is empty: ") {
		t.Errorf("alone: got %v", err)
	}
	for _, upstream := range []Upstream{
		"http://x", "http://{function}/path", "ftp://{function}", "http://u:canary@{function}", "{function}",
	} {
		if err := upstream.Validate("X_UPSTREAM"); err == nil ||
			!strings.HasPrefix(err.Error(), "X_UPSTREAM must be ") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: got %v", upstream, err)
		}
		if _, err := (Functions{}).At("X_UPSTREAM", upstream); err == nil {
			t.Errorf("%s is taken", upstream)
		}
	}
}

// TestInside: the process's own API answers as over HTTP, with the id of the request that calls; a request without a
// body has none to read.
func TestInside(t *testing.T) {
	t.Parallel()
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(append([]byte(r.Method+" "+r.URL.RequestURI()+" "), body...))
	})
	functions, err := (Functions{own: func() http.Handler { return api }}).At("X_UPSTREAM", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx := httpx.NewRequestID(t.Context())
	for _, c := range []struct {
		body io.Reader
		want string
	}{{nil, "POST /v1/things/a%2Fb?x=%zz "}, {strings.NewReader("text"), "POST /v1/things/a%2Fb?x=%zz text"}} {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/things/a%2Fb?x=%zz", c.body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := functions.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusTeapot || string(got) != c.want || resp.ContentLength != -1 ||
			resp.Header.Get("X-Request-Id") != httpx.RequestID(ctx) {
			t.Errorf("got %d %s %s", resp.StatusCode, got, resp.Header)
		}
		if r.Header.Get("X-Request-Id") != "" {
			t.Error("the request that was given was changed")
		}
	}
}

// TestInsideStreams: an answer is read as it is written, however long it is, and one that breaks off is no whole one.
func TestInsideStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for path, broken := range map[string]bool{"/whole": false, "/broken": true} {
			wrote := make(chan error, 1)
			api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusOK)
				_, err := io.WriteString(w, "first")
				wrote <- err
				if broken {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, " last")
			})
			functions, err := (Functions{own: func() http.Handler { return api }}).At("X_UPSTREAM", "")
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest(http.MethodGet, path, nil)
			resp, err := functions.RoundTrip(r.WithContext(httpx.NewRequestID(t.Context())))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			select {
			case <-wrote:
				t.Error("it was written before anybody read it: all of it would be kept")
			default:
			}
			body, err := io.ReadAll(resp.Body)
			if want := map[bool]string{true: "first", false: "first last"}[broken]; string(body) != want ||
				(err != nil) != broken {
				t.Errorf("%s: got %q, %v", path, body, err)
			}
			_ = resp.Body.Close()
		}
		// A client that does not read on ends what is written.
		ended := make(chan error, 1)
		api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := io.WriteString(w, "more"); err != nil {
					ended <- err
					panic(http.ErrAbortHandler)
				}
			}
		})
		functions, err := (Functions{own: func() http.Handler { return api }}).At("X_UPSTREAM", "")
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		resp, err := functions.RoundTrip(r.WithContext(httpx.NewRequestID(t.Context())))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		<-ended
	})
}

// TestOutside: the request goes to the service of its function, whose words are passed on; those of someone else are
// not.
func TestOutside(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/foreign" {
			w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, r.Host+" "+r.RequestURI)
	}))
	t.Cleanup(service.Close)
	at := strings.TrimPrefix(service.URL, "http://")
	functions, err := newDirectory([]function{listed("things", "GET /v1/things"), listed("zoo", "GET /v1/zoo")},
		"http://{function}.fn.test")
	if err != nil {
		t.Fatal(err)
	}
	functions.services["things"].Host, functions.services["zoo"].Host = at, "127.0.0.1:1"
	ctx := httpx.NewRequestID(t.Context())
	call := func(path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return outside{functions, toFunctions()}.RoundTrip(r)
	}
	resp, err := call("/v1/things/a%2Fb?x")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable ||
		string(got) != at+" /v1/things/a%2Fb?x" {
		t.Errorf("got %d %s", resp.StatusCode, got)
	}
	if _, err := call("/v1/zoo"); apperr.CodeOf(err) != apperr.Unavailable {
		t.Errorf("a service that is unavailable: got %v", err)
	}
	functions.owners["/v1/foreign"] = "things"
	if _, err := call("/v1/foreign"); apperr.CodeOf(err) != apperr.BadGateway {
		t.Errorf("someone else's answer: got %v", err)
	}
}
