package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func client(t *testing.T, base string, debug Debug) *Client {
	t.Helper()
	return New(Options{URL: base, Debug: debug, Token: func(_ context.Context, renew bool) (domain.Secret, error) {
		if renew {
			return "renewed", nil
		}
		return "first", nil
	}})
}

// get is a request without a body.
func get(t *testing.T, c *Client, path string) error {
	t.Helper()
	return c.Do(t.Context(), http.MethodGet, path, nil, nil)
}

// TestWhereAFunctionIs: one URL for all, or one for each.
func TestWhereAFunctionIs(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/v1/servers?limit=1": "http://servers.example.com/v1/servers?limit=1",
		"/v1/launch/x":        "http://launch.example.com/v1/launch/x",
		"/v1/requests":        "http://stats.example.com/v1/requests",
		"/v1/status":          "http://stats.example.com/v1/status",
	} {
		if got := client(t, "http://{function}.example.com/", nil).url(path); got != want {
			t.Errorf("%s is at %s, not %s", path, got, want)
		}
		if got := client(t, "https://example.com/", nil).url(path); got != "https://example.com"+path {
			t.Errorf("%s is at %s", path, got)
		}
	}
	for _, base := range []string{"", "example.com", "ftp://example.com", "http://", "http://example.com?x=1"} {
		if err := get(t, client(t, base, nil), "/v1/x"); err == nil || !strings.Contains(err.Error(), "CLOUDFN_URL") {
			t.Errorf("%q: %v", base, err)
		}
	}
}

// TestNoVersion: what was read without a version is not written.
func TestNoVersion(t *testing.T) {
	t.Parallel()
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, fmt.Sprintf("%s %s%s", r.Method, r.Header.Get("If-Match"), r.Header.Get("If-None-Match")))
		fmt.Fprint(w, "{}")
	}))
	defer server.Close()
	c := client(t, server.URL, nil)
	read, err := Get[struct{}](t.Context(), c, "/v1/x", nil)
	if err == nil {
		_, err = SendIfMatch[struct{}](t.Context(), c, http.MethodPut, "/v1/x", read.ETag, nil)
	}
	if err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("without an ETag: %v", err)
	}
	for _, version := range []string{Any, Absent, `"3"`} {
		if _, err := SendIfMatch[struct{}](t.Context(), c, http.MethodPut, "/v1/x", version, nil); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
	if want := []string{"GET ", "PUT ", "PUT *", `PUT "3"`}; !slices.Equal(got, want) {
		t.Errorf("sent were %q, want %q", got, want)
	}
}

// TestATokenGoesNowhereElse: a redirect is not followed, and a refused token is renewed once.
func TestATokenGoesNowhereElse(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a redirect was followed")
	}))
	t.Cleanup(elsewhere.Close)
	var tokens []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.Header.Get("X-Auth-Token"))
		if r.URL.Path == "/v1/unavailable" {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	err := get(t, client(t, server.URL, nil), "/v1/unavailable")
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusTemporaryRedirect {
		t.Errorf("a redirect: %v", err)
	}
	tokens = nil
	err = get(t, client(t, server.URL, nil), "/v1/servers")
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusUnauthorized ||
		fmt.Sprint(tokens) != "[first renewed]" {
		t.Errorf("a refused token: %v after %v", err, tokens)
	}
}

// TestDebugShowsNoSecret: neither in a header, nor at any depth of a body, nor in what is no JSON.
func TestDebugShowsNoSecret(t *testing.T) {
	t.Parallel()
	const canary = "canary-in-the-mine"
	var answer string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	var shown strings.Builder
	c := client(t, server.URL, func(format string, args ...any) { fmt.Fprintf(&shown, format+"\n", args...) })
	c.options.Token = func(context.Context, bool) (domain.Secret, error) { return canary, nil }
	for _, field := range secretFields {
		body := map[string]any{
			"name": "web", "instances": []any{map[string]any{field: canary}},
			field: map[string]any{"deep": canary},
		}
		answer = `{"` + field + `": "` + canary + `", "id": "visible"}`
		if err := c.Do(t.Context(), http.MethodPost, "/v1/x", body, nil); err != nil {
			t.Fatal(err)
		}
	}
	answer = `{"url": "https://console.example.com/vnc.html?path=%3Ftoken%3D` + canary + `", "next": "/v1/x?limit=1"}`
	if err := get(t, c, "/v1/x"); err != nil {
		t.Fatal(err)
	}
	answer = "<html>" + canary
	if err := get(t, c, "/v1/x"); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(shown.String(), canary) {
		t.Errorf("it shows a secret:\n%s", &shown)
	}
	for _, want := range []string{
		`"name":"web"`, `"id":"visible"`, "X-Auth-Token: [redacted]", "bytes)",
		"https://console.example.com/vnc.html?[redacted]", "/v1/x?limit=1",
	} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("it does not show %s:\n%s", want, &shown)
		}
	}
}

// TestAProblemIsOneLine, whatever the answer was.
func TestAProblemIsOneLine(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"detail":"wrong","code":"invalid","errors":[{"field":"n","detail":"must be\n1"}]}`: "wrong; n must be 1",
		"<html>\n<body>": "not one of cloudfn's",
	} {
		text := newError(&http.Response{StatusCode: http.StatusBadRequest}, []byte(body)).Error()
		if strings.Contains(text, "\n") || !strings.Contains(text, want) {
			t.Errorf("%q, want %q", text, want)
		}
	}
	header := http.Header{"Retry-After": {"5"}, "X-Request-Id": {"req-1"}}
	e := newError(&http.Response{StatusCode: http.StatusServiceUnavailable, Header: header},
		[]byte(`{"detail":"unavailable"}`))
	if e.Error() != "unavailable (try again in 5 s) [req-1]" {
		t.Errorf("%q", e.Error())
	}
	e = newError(&http.Response{StatusCode: http.StatusServiceUnavailable, Header: header},
		[]byte(`{"detail":"unavailable; the change may have been made","outcome":"unknown"}`))
	if e.Error() != "unavailable; the change may have been made [req-1]" || !e.IsCutOff {
		t.Errorf("an unknown outcome: %q, %v", e.Error(), e.IsCutOff)
	}
}

// TestAWrongPath differs from a thing that was not found by the field of the error, whatever its text.
func TestAWrongPath(t *testing.T) {
	t.Parallel()
	resp := &http.Response{StatusCode: http.StatusNotFound}
	body := `{"detail": "x", "code": "not_found"}`
	if e := newError(resp, []byte(body)); e.ExitCode() != exit.NotFound || e.Detail != "x" {
		t.Errorf("a thing that is not there gives %d: %v", e.ExitCode(), e)
	}
	body = `{"detail": "x", "code": "not_found", "errors": [{"field": "path", "detail": "y"}]}`
	if e := newError(resp, []byte(body)); e.ExitCode() != exit.Usage || !strings.Contains(e.Error(),
		"not at this URL") {
		t.Errorf("a wrong path gives %d: %v", e.ExitCode(), e)
	}
}

// TestARateLimit: a request that a limit rejects is sent again when its time has come, unless that is too late.
func TestARateLimit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retryAfter string
		times      int // that it is rejected
		wantSent   int
	}{
		"soon":               {"0", 3, 4},
		"in an hour":         {"3600", 1, 1},
		"at an unknown time": {"", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if body, _ := io.ReadAll(r.Body); string(body) != `{"a":1}` {
					t.Errorf("request %d has the body %q", sent, body)
				}
				if sent++; sent <= tc.times {
					w.Header().Set("Retry-After", tc.retryAfter)
					w.WriteHeader(http.StatusTooManyRequests)
				}
			}))
			defer server.Close()
			err := client(t, server.URL, nil).Do(t.Context(), http.MethodPost, "/v1/x", map[string]int{"a": 1}, nil)
			if isRejected := err != nil; sent != tc.wantSent || isRejected != (tc.wantSent <= tc.times) {
				t.Errorf("it was sent %d times: %v", sent, err)
			}
			if e, ok := errors.AsType[*Error](err); ok && e.ExitCode() != exit.Unavailable {
				t.Errorf("it ends with %d", e.ExitCode())
			}
		})
	}
}

type numbered struct {
	N int `json:"n"`
}

// pages is an API of two pages, and notes its requests. It is no real one: that would need over a thousand
// things. To the token "old" it answers 401.
func pages(t *testing.T, requests *[]string) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests = append(*requests, r.URL.RequestURI())
		switch {
		case r.Header.Get("X-Auth-Token") == "old":
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"detail":"the token is refused","code":"unauthenticated"}`)
		case r.Header.Get("Accept") == "image/svg+xml":
			fmt.Fprint(w, "<svg/>")
		case r.URL.Query().Get("marker") == "":
			fmt.Fprint(w, `{"things":[{"n":1},{"n":2},{"n":3}],"next":"/v1/things?marker=3"}`)
		default:
			fmt.Fprint(w, `{"things":[{"n":4},{"n":5}],"next":null}`)
		}
	}))
	t.Cleanup(server.Close)
	return New(Options{URL: server.URL, Token: func(_ context.Context, renew bool) (domain.Secret, error) {
		if renew {
			return "new", nil
		}
		return "old", nil
	}})
}

func values(items []Item[numbered]) (all []int) {
	for _, i := range items {
		all = append(all, i.Value.N)
	}
	return all
}

// TestList reads as many pages as it takes, and no more.
func TestList(t *testing.T) {
	t.Parallel()
	odd := func(n numbered) bool { return n.N%2 == 1 }
	for name, c := range map[string]struct {
		most  int
		keep  func(numbered) bool
		want  []int
		first string // the query of the first request
		calls int
	}{
		"all":            {0, nil, []int{1, 2, 3, 4, 5}, "/v1/things?limit=1000", 4},
		"some":           {2, nil, []int{1, 2}, "/v1/things?limit=2", 2},
		"those":          {0, odd, []int{1, 3, 5}, "/v1/things?limit=1000", 4},
		"some of those":  {3, odd, []int{1, 3, 5}, "/v1/things?limit=1000", 4},
		"fewer of those": {2, odd, []int{1, 3}, "/v1/things?limit=1000", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests []string
			list := List[numbered]{Path: "/v1/things", Key: "things", Limit: c.most, Keep: c.keep}
			found, err := list.Read(t.Context(), pages(t, &requests))
			if err != nil || !slices.Equal(values(found), c.want) || requests[0] != c.first ||
				len(requests) != c.calls {
				t.Errorf("found %v by %q: %v", values(found), requests, err)
			}
		})
	}
}

// TestCopy gets another token, too, when the stored one is rejected.
func TestCopy(t *testing.T) {
	t.Parallel()
	var requests []string
	var copied bytes.Buffer
	err := pages(t, &requests).Copy(t.Context(), &copied, "/v1/stats", nil, "image/svg+xml")
	if err != nil || copied.String() != "<svg/>" || len(requests) != 2 {
		t.Errorf("%q after %q: %v", copied.String(), requests, err)
	}
}

// TestErrorSaysWhatIsAllowed in the one line that there is.
func TestErrorSaysWhatIsAllowed(t *testing.T) {
	t.Parallel()
	allowed := []string{"start", "delete"}
	e := &Error{Status: http.StatusConflict, Detail: "it cannot be stopped", Fields: []FieldError{{
		Field:  "action",
		Detail: "cannot be stopped", Allowed: &allowed,
	}}}
	if got := e.Error(); got != "it cannot be stopped (allowed: start, delete)" {
		t.Errorf("it says %q", got)
	}
}
